"""A machine on which everything goes wrong that can, by chance, until it is told to stop."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from harness.errors import EndpointUnreachable, LoadFailed, ServerError, StreamCut
from harness.residency import Device, HostReport, KeepAliveBudget, Tenant
from harness.trace import SpanEnded, SpanStarted, Tracer

FOR_EVER_S = 1e9
MOST_MOVES = 25
"""That one thing may lead to: five models that make way, are tried in vain, and come back."""


@dataclass(kw_only=True)
class Server:
    """One model, and the server that has it."""

    model: str
    real: dict[str, int]
    """What it takes, by device, whatever anybody thinks."""
    loads_itself: bool
    """Whether a call loads the model, as with Ollama; else it must have been loaded before."""
    is_mute: bool
    """Whether it never says how things are; it then loses nothing either."""
    says_sizes: bool
    never: frozenset[str] = frozenset()
    """What fails every time: `load`, `unload`, `report`."""
    lies: float = 1.0
    """What it says its model takes, by what it does take."""
    is_dead: bool = False
    """It cannot be reached; what it had is gone, or is not."""
    is_resident: bool = False
    is_coming: bool = False
    """Its model has its memory, and no calls can begin."""
    is_busy: bool = False
    """A load or an unload that the budget asked for is under way."""
    calls: int = 0
    """Under way."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the model goes that is there now."""


class FaultyMachine:
    """Servers, and the memory that they share.

    Args:
        randomness: Decides everything.

    Attributes:
        budget: Its keep-alive budget, not yet opened.
        faulty: Whether anything may go wrong still.
        is_closing: Whether the budget may unload what is in use.
        log: What happened, and when.
        broken_promises: What should not have happened.
        open_spans: Of the trace.
    """

    def __init__(self, randomness: random.Random) -> None:
        self.randomness = randomness
        self.faulty = True
        self.is_closing = False
        self.log: list[str] = []
        self.broken_promises: list[str] = []
        self._moves = 0
        self.open_spans: Counter[int] = Counter()
        self._fault_rate = randomness.choice([0.0, 0.05, 0.3])
        self._sizes_are_right = randomness.random() < 0.4
        self.others_load = not self._sizes_are_right and randomness.random() < 0.5
        self.devices = self._some_devices()
        self.real_bytes = {
            device.name: round(
                device.capacity_bytes
                * (1 if self._sizes_are_right else randomness.choice([1, 1, 1, 0.6, 1.5]))
            )
            for device in self.devices
        }
        self.servers = {model: self._some_server(model) for model in self._some_models()}
        self.guests: list[FaultyGuest] = []
        self.budget = KeepAliveBudget(
            devices=self.devices,
            tenants=self._some_tenants(),
            hosts={model: FaultyHost(self, server) for model, server in self.servers.items()},
            tracer=Tracer(self._take, clock=self.now_ns),
            max_wait_s=randomness.choice([0.0, 10.0, 60.0]),
        )
        # What does not fit beside what is pinned would be taken for smaller than it is.
        if not any(tenant.pin for tenant in self.budget.tenants.values()):
            for server in self.servers.values():
                if not server.is_mute and randomness.random() < 0.2 and self._has_room(server):
                    server.is_resident = True

    @property
    def is_flawless(self) -> bool:
        """Whether nothing at all goes wrong in it."""
        return self._sizes_are_right and not self._fault_rate

    # --- what there is ----------------------------------------------------------------------------

    def _some_devices(self) -> list[Device]:
        devices = [Device(name="machine", capacity_bytes=self.randomness.randint(8, 20))]
        if self.randomness.random() < 0.4:
            capacity_bytes, reserve_bytes = self.randomness.randint(6, 16), self._one_of(0, 2)
            devices.append(
                Device(name="gpu0", capacity_bytes=capacity_bytes, reserve_bytes=reserve_bytes)
            )
        return devices

    def _some_models(self) -> str:
        return "abcde"[: self.randomness.randint(2, 5)]

    def _some_server(self, model: str) -> Server:
        where = [device.name for device in self.devices]
        on = where if self.randomness.random() < 0.2 else [self.randomness.choice(where)]
        is_mute = self.randomness.random() < 0.2
        return Server(
            model=model,
            real={device: self.randomness.randint(1, 9) for device in on},
            loads_itself=not self._sizes_are_right and self.randomness.random() < 0.3,
            is_mute=is_mute,
            says_sizes=self.randomness.random() < 0.6,
            never=frozenset(
                action
                for action in ("load", "unload", "report")
                if self._fault_rate and self.randomness.random() < 0.05
            ),
            lies=1.0 if self._sizes_are_right else self._one_of(1.0, 1.0, 0.1, 10.0),
        )

    def _some_tenants(self) -> list[Tenant]:
        one_of = self._one_of
        tenants = []
        for model, server in self.servers.items():
            wrong = 1.0 if self._sizes_are_right else one_of(1.0, 1.0, 0.5, 2.0)
            tenants.append(
                Tenant(
                    model=model,
                    need={name: max(round(size * wrong), 1) for name, size in server.real.items()},
                    load_s=one_of(0.5, 5.0, 30.0),
                    slots=one_of(None, None, 1, 2),
                    kv_tokens=one_of(None, 100),
                    load_timeout_s=one_of(20.0, 60.0, 600.0),
                    priority=one_of(0, 0, 1),
                )
            )
        if self.randomness.random() < 0.4:
            first = tenants[0]
            if all(
                first.need.get(device.name, 0) <= device.room_bytes // 2 for device in self.devices
            ):
                tenants[0] = Tenant(
                    model=first.model, need=first.need, pin=True, load_timeout_s=60.0
                )
        return tenants

    def _one_of(self, *choices):
        return self.randomness.choice(choices)

    # --- its memory -------------------------------------------------------------------------------

    def taken_bytes(self, device: str) -> int:
        """By whatever is there, or on its way."""
        models = sum(
            server.real.get(device, 0)
            for server in self.servers.values()
            if server.is_resident or server.is_coming
        )
        guests = sum(guest.resident_bytes for guest in self.guests) if device == "machine" else 0
        return models + guests

    def _has_room(self, server: Server) -> bool:
        return all(
            self.taken_bytes(device) + size <= self.real_bytes[device]
            for device, size in server.real.items()
        )

    # --- what can happen --------------------------------------------------------------------------

    def now_ns(self) -> int:
        """The time."""
        return round(asyncio.get_running_loop().time() * 1e9)

    def something_happened(self) -> None:
        """Which may well have models moved."""
        self._moves = 0

    def begin_move(self, server: Server) -> None:
        """The budget has asked for one; not again and again, when nothing has changed."""
        self.must(not server.is_busy, f"{server.model} is moved by two")
        server.is_busy = True
        self._moves += 1
        self.must(self._moves <= MOST_MOVES, f"{server.model} is moved again and again")

    def note(self, text: str) -> None:
        """Writes it down."""
        self.log.append(f"{self.now_ns() / 1e9:10.3f}  {text}")

    def goes_wrong(self, server: Server | None = None, action: str = "") -> bool:
        """Whether it does, this time."""
        is_cursed = server is not None and action in server.never
        return self.faulty and (is_cursed or self.randomness.random() < self._fault_rate)

    def must(self, holds: bool, text: str) -> None:  # noqa: FBT001 - as assert
        """What must hold: not an assertion, for whoever asked a host expects it to fail."""
        if not holds:
            self.note(f"WRONG: {text}")
            self.broken_promises.append(text)

    async def pause(self, most_s: float = 5.0) -> None:
        """Takes its time."""
        await asyncio.sleep(self._one_of(0.0, 0.001, self.randomness.uniform(0.0, most_s)))

    def bring(self, server: Server) -> bool:
        """The model takes its memory; whether there is room for it."""
        if not self._has_room(server):
            return False
        server.is_coming = True
        return True

    def stay(self, server: Server) -> None:
        """It is there."""
        server.is_coming, server.is_resident = False, True
        server.gone = asyncio.Event()

    def leave(self, server: Server) -> None:
        """It is not there any more, whatever was."""
        server.is_coming = server.is_resident = False
        server.gone.set()

    async def call(self, server: Server, length_s: float) -> None:
        """One call, which the server answers if it can."""
        self.something_happened()
        server.calls += 1
        try:
            if server.is_dead:
                raise EndpointUnreachable("connection refused", endpoint=server.model)
            if not server.is_resident:
                if server.is_coming or not (server.loads_itself and self.bring(server)):
                    raise ServerError("the model is not loaded", endpoint=server.model)
                self.note(f"{server.model} is loaded by a call")
                self.stay(server)
            gone = server.gone
            try:
                async with asyncio.timeout(length_s):
                    await gone.wait()
            except TimeoutError:
                return
            raise StreamCut("the stream ended", endpoint=server.model)
        finally:
            server.calls -= 1
            self.something_happened()

    async def make_trouble(self) -> None:
        """Has things happen that nobody asked for, for ever."""
        while True:
            await asyncio.sleep(self.randomness.uniform(0.5, 60.0))
            server = self.randomness.choice(list(self.servers.values()))
            if server.is_mute or not self.goes_wrong():
                continue
            self.something_happened()
            match self._one_of("dies", "hides", "loses", "others"):
                case "dies":
                    self.note(f"{server.model}'s server dies")
                    server.is_dead = True
                    self.leave(server)
                    await asyncio.sleep(self.randomness.uniform(0.0, 40.0))
                    server.is_dead = False
                case "hides":
                    self.note(f"{server.model}'s server cannot be reached")
                    server.is_dead = True
                    await asyncio.sleep(self.randomness.uniform(0.0, 40.0))
                    server.is_dead = False
                case "loses" if server.is_resident and not server.is_busy:
                    self.note(f"{server.model} is lost")
                    self.leave(server)
                case "others" if self.others_load and not server.is_busy:
                    if not (server.is_resident or server.is_coming) and self.bring(server):
                        self.note(f"{server.model} is loaded by others")
                        self.stay(server)

    def calm_down(self) -> None:
        """From now on all goes well, and all is told as it is."""
        self.faulty = False
        for server in self.servers.values():
            server.is_dead, server.lies = False, 1.0
        for guest in self.guests:
            guest.is_broken = False

    # --- what must be so --------------------------------------------------------------------------

    def check_room(self, server: Server) -> None:
        """What the budget loads has room in its ledger, where all is as it was told."""
        ledger = self.budget.ledger
        if self._sizes_are_right:
            for device in server.real:
                self.must(ledger.room_for_models(device) >= 0, f"{server.model} had no room")

    def _take(self, record) -> None:
        if isinstance(record, SpanStarted):
            self.open_spans[record.id] += 1
        elif isinstance(record, SpanEnded):
            del self.open_spans[record.id]


class FaultyHost:
    """What the budget moves one model by."""

    def __init__(self, machine: FaultyMachine, server: Server) -> None:
        self._machine = machine
        self._server = server

    async def load(self) -> None:
        machine, server = self._machine, self._server
        is_known = server.model in machine.budget.ledger.residents
        machine.must(not is_known, f"{server.model} is loaded, and known to be there")
        machine.note(f"load {server.model}")
        machine.begin_move(server)
        try:
            await self._load()
            machine.note(f"loaded {server.model}")
        except BaseException as error:
            machine.note(f"not loaded {server.model}: {error!r}")
            raise
        finally:
            server.is_busy = False

    async def _load(self) -> None:
        machine, server = self._machine, self._server
        if server.is_dead:
            raise EndpointUnreachable("connection refused", endpoint=server.model)
        if server.is_resident:
            return
        if not machine.bring(server):
            machine.must(not machine.is_flawless, f"{server.model} has no room")
            await machine.pause()
            is_told = not machine.goes_wrong()
            raise LoadFailed("out of memory", endpoint=server.model, out_of_memory=is_told)
        machine.check_room(server)
        stays_anyway = False
        try:
            if machine.goes_wrong(server, "load"):
                match machine._one_of("fails", "hangs", "comes too late", "is not there"):
                    case "fails":
                        await machine.pause()
                        raise LoadFailed("a bad day", endpoint=server.model)
                    case "hangs":
                        await asyncio.sleep(FOR_EVER_S)
                    case "comes too late":
                        stays_anyway = not server.is_mute
                        await asyncio.sleep(FOR_EVER_S)
                    case "is not there" if not server.is_mute:
                        machine.leave(server)
                        return
            await machine.pause(15.0)
            if server.is_dead or not server.is_coming:
                raise EndpointUnreachable("connection lost", endpoint=server.model)
        except BaseException:
            if stays_anyway and server.is_coming:
                machine.note(f"{server.model} comes all the same")
                machine.stay(server)
            else:
                machine.leave(server)
            raise
        machine.stay(server)

    async def unload(self) -> None:
        machine, server = self._machine, self._server
        is_free = server.calls == 0 or machine.is_closing
        machine.must(is_free, f"{server.model} is unloaded, and in use")
        machine.note(f"unload {server.model}")
        machine.begin_move(server)
        try:
            await self._unload()
            machine.note(f"unloaded {server.model}")
        except BaseException as error:
            machine.note(f"not unloaded {server.model}: {error!r}")
            raise
        finally:
            server.is_busy = False

    async def _unload(self) -> None:
        machine, server = self._machine, self._server
        if server.is_dead:
            raise EndpointUnreachable("connection refused", endpoint=server.model)
        if machine.goes_wrong(server, "unload"):
            match machine._one_of("stays", "hangs", "goes and fails", "goes and hangs"):
                case "stays":
                    await machine.pause()
                    raise LoadFailed("it is kept", endpoint=server.model)
                case "hangs":
                    await asyncio.sleep(FOR_EVER_S)
                case "goes and fails" if not server.is_mute:
                    machine.leave(server)
                    raise LoadFailed("a bad day", endpoint=server.model)
                case "goes and hangs" if not server.is_mute:
                    machine.leave(server)
                    await asyncio.sleep(FOR_EVER_S)
        await machine.pause(2.0)
        machine.leave(server)

    async def report(self) -> HostReport | None:
        machine, server = self._machine, self._server
        if server.is_mute:
            return None
        await machine.pause(1.0)
        if server.is_dead:
            raise EndpointUnreachable("connection refused", endpoint=server.model)
        if machine.goes_wrong(server, "report"):
            match machine._one_of("hangs", "breaks", "says nothing"):
                case "hangs":
                    await asyncio.sleep(FOR_EVER_S)
                case "breaks":
                    raise RuntimeError("not what anybody expects")
                case _:
                    return None
        said = HostReport(resident=server.is_resident)
        if server.is_resident and server.says_sizes:
            sizes = {name: round(size * server.lies) for name, size in server.real.items()}
            total_bytes = sum(sizes.values())
            said = HostReport(
                resident=True,
                total_bytes=total_bytes,
                gpu_bytes=total_bytes - sizes.get("machine", 0),
            )
        await machine.pause(1.0)
        return said

    async def aclose(self) -> None:
        pass


class FaultyGuest:
    """Takes of the machine's memory, grows, and may fail to come back."""

    def __init__(self, name: str, machine: FaultyMachine) -> None:
        self.name = name
        self.needed_bytes = machine.randomness.randint(0, 6)
        self.resident_bytes = 0
        self.is_broken = False
        self.is_out = False
        self._machine = machine

    def come_along(self) -> None:
        """Takes what it needs, as if nobody else were there."""
        self.resident_bytes = self.needed_bytes

    def grow(self) -> None:
        """Or shrinks."""
        self.needed_bytes = self._machine.randomness.randint(0, 8)
        if not self.is_out:
            self.resident_bytes = self.needed_bytes

    def evict(self, reason: str) -> None:
        self._machine.note(f"guest {self.name} goes: {reason}")
        self.is_out = True
        self.resident_bytes = 0

    def restore(self) -> None:
        self._machine.must(self.is_out, f"guest {self.name} comes, and is there")
        if self.is_broken:
            raise OSError("its file is gone")
        self._machine.note(f"guest {self.name} is back")
        self.is_out = False
        self.resident_bytes = self.needed_bytes
