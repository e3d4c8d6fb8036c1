"""Short names for what a decision rests on."""

from harness.residency import NOTHING_KNOWN, Device, Forecast, Strand, Tenant
from harness.residency.ledger import BudgetState, Ledger, Resident, WaitingCall

SECOND = 1_000_000_000


def tenant(model, need=1, *, load_s=1.0, **settings):
    needs = need if isinstance(need, dict) else {"machine": need}
    return Tenant(model=model, need=needs, load_s=load_s, **settings)


def resident(model, need=1, *, leases=0, idle_since_s=0.0):
    return Resident(
        model=model,
        need=need if isinstance(need, dict) else {"machine": need},
        leases=leases,
        idle_since_ns=round(idle_since_s * SECOND),
    )


def wait(number, model, *, since_s=0.0):
    """A waiting call."""
    return WaitingCall(id=number, model=model, since_ns=round(since_s * SECOND))


def calls(*models, since_s=0.0):
    """Waiting calls, the oldest first."""
    return tuple(
        wait(number, model, since_s=since_s) for number, model in enumerate(models, start=1)
    )


def expected(*strands, is_complete=True):
    """A forecast of these strands, each the tags that are used one after another."""
    return Forecast(
        strands=tuple(
            Strand(name=f"strand {number}", uses=tuple(uses)) for number, uses in enumerate(strands)
        ),
        is_complete=is_complete,
    )


def state(
    tenants,
    residents=(),
    waiting=(),
    *,
    room=None,
    now_s=0.0,
    forecast=NOTHING_KNOWN,
    max_wait_s=60.0,
    moving=None,
    failed=(),
):
    rooms = {"machine": room} if not isinstance(room, dict) else {"machine": 0, **room}
    return BudgetState(
        now_ns=round(now_s * SECOND),
        ledger=Ledger(
            devices={
                name: Device(name=name, capacity_bytes=bytes_) for name, bytes_ in rooms.items()
            },
            residents={one.model: one for one in residents},
            moving=moving,
        ),
        tenants={one.model: one for one in tenants},
        waiting=tuple(waiting),
        forecast=forecast,
        max_wait_ns=round(max_wait_s * SECOND),
        failed=frozenset(failed),
    )
