"""What others do about the same calls on the same devices, as policies of the same simulation.

None of them looks ahead, and none knows how long calls take. Each is asked as often as ours, moves
one model at a time, may load while calls are under way, and answers as many calls side by side as
the model has slots. None unloads a model that has calls.

fifo_lru    Calls begin in the order in which they came: none before all earlier ones have begun.
            A model is loaded when its call's turn has come; if there is no room, the idle ones
            that were unused the longest go, as many as must.
keep_alive  As Ollama does with its defaults (server/sched.go): calls are handed to models in the
            order in which they came, and wait for a slot there, so that they keep none behind them
            from another model that is resident. The first whose model is not keeps all behind it
            waiting until that has come. For it go idle models, first the one whose five minutes are
            over the soonest; and whatever has been idle for five minutes goes.
grouped     Calls for what is resident begin, whenever they came. When the oldest of the others
            finds no room, idle models go for it, those first that were unused the longest. Nothing
            keeps a call from waiting for ever while others come; that may save loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from harness.residency import Need
from harness.residency.ledger import (
    BudgetState,
    Decision,
    Grant,
    Ledger,
    LoadModel,
    Resident,
    UnloadModel,
    Wait,
    WaitingCall,
)

KEEP_ALIVE_NS = 300 * 1_000_000_000


def fifo_lru(state: BudgetState) -> Decision:
    begins, taken = [], leases_of(state)
    for call in state.waiting:
        if not has_slot(state, call, taken):
            if begins:
                break
            return Wait() if call.model in taken else make_room(state, call)
        taken[call.model] += 1
        begins.append(call.id)
    return Grant(calls=tuple(begins)) if begins else Wait()


def keep_alive(state: BudgetState) -> Decision:
    begins, taken, handed_over = [], leases_of(state), set[str]()
    blocked = None
    for call in state.waiting:
        if call.model not in taken:
            blocked = call
            break
        handed_over.add(call.model)
        if has_slot(state, call, taken):
            taken[call.model] += 1
            begins.append(call.id)
    if begins:
        return Grant(calls=tuple(begins))
    if state.ledger.moving is not None:
        return Wait()
    over = {
        one.model: one.idle_since_ns + KEEP_ALIVE_NS
        for one in idle(state)
        if one.model not in handed_over
    }
    for model, over_ns in over.items():
        if over_ns <= state.now_ns:
            return UnloadModel(model=model, reason="its five minutes are over")
    if blocked is not None:
        return make_room(state, blocked, keeping=handed_over)
    return Wait(until_ns=min(over.values(), default=None))


def grouped(state: BudgetState) -> Decision:
    begins, taken = [], leases_of(state)
    wanted = None
    for call in state.waiting:
        if has_slot(state, call, taken):
            taken[call.model] += 1
            begins.append(call.id)
        elif call.model not in taken:
            wanted = wanted or call
    if begins:
        return Grant(calls=tuple(begins))
    return Wait() if wanted is None else make_room(state, wanted)


PEERS = {"FIFO + LRU": fifo_lru, "5-minute timer": keep_alive, "grouped, no look-ahead": grouped}


# --- what they share ----------------------------------------------------------------------------


def leases_of(state: BudgetState) -> Counter[str]:
    """Of each resident model, also where it is 0."""
    return Counter({one.model: one.leases for one in state.ledger.residents.values()})


def has_slot(state: BudgetState, call: WaitingCall, taken: Mapping[str, int]) -> bool:
    slots = state.tenants[call.model].slots
    return call.model in taken and (slots is None or taken[call.model] < slots)


def idle(state: BudgetState) -> list[Resident]:
    """The longest unused first."""
    there = [one for one in state.ledger.residents.values() if not one.leases]
    return sorted(there, key=lambda one: (one.idle_since_ns, one.model))


def make_room(state: BudgetState, call: WaitingCall, *, keeping: Collection[str] = ()) -> Decision:
    """The load of a call's model, for which idle ones go; a wait if there are not enough."""
    if state.ledger.moving is not None:
        return Wait()
    ledger, need = state.ledger, state.tenants[call.model].need
    victims = []
    for one in idle(state):
        if one.model not in keeping and short_of(ledger, need) & one.need.keys():
            victims.append(one.model)
            staying = {m: there for m, there in ledger.residents.items() if m != one.model}
            ledger = replace(ledger, residents=staying)
    if short_of(ledger, need):
        return Wait()
    return LoadModel(model=call.model, evict=tuple(victims), reason="its call is next")


def short_of(ledger: Ledger, need: Need) -> set[str]:
    """The devices on which there is too little room."""
    return {device for device, bytes_ in need.items() if ledger.free_bytes(device) < bytes_}
