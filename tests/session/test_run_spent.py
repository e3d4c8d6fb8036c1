"""What a run took, added up from its journal: against its meter, and call by call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from harness import Journal, Message, RunTrace, ScriptedBackend, Settings
from harness.errors import HarnessError, ServerError
from harness.inference import ChatRequest, Completion, most_prompt_tokens
from harness.session.run_spent import RunSpent, run_spent
from harness.session.session import open_session
from harness.session.settings import TraceSettings
from harness.trace import ManualClock
from harness.wiggum import Spent

SAID = "one two three"


class Charging(ScriptedBackend):
    """Says what its replies cost: a quarter of a dollar each."""

    async def chat(self, request: ChatRequest) -> Completion:
        return replace(await super().chat(request), cost_usd=0.25)


def test_the_journal_has_what_the_meter_counted(tmp_path: Path) -> None:
    requests = [
        ChatRequest(model="writer", messages=(Message("user", f"Question {n}?"),)) for n in range(3)
    ]
    writer = Charging([SAID, ServerError("broken", endpoint="writer", status=400), SAID])

    async def metered() -> tuple[Spent, Path]:
        settings = Settings(traces=tmp_path / "traces", roles={"producer": "writer"})
        async with open_session(
            settings, name="asked", environment={}, backends={"writer": writer}
        ) as session:
            for request in requests:
                try:
                    await session.spending.chat(request)
                except HarnessError as error:
                    assert "broken" in str(error)  # noqa: PT017 - one of three
            return session.spending.spent, session.trace.journal_path

    spent, path = asyncio.run(metered())
    found = run_spent(Journal(path))

    assert (spent.calls, spent.output_tokens, spent.cost_usd) == (3, 6, 0.5)
    for name in ("calls", "output_tokens", "cost_usd", "estimated_calls", "unpriced_calls"):
        assert getattr(found, name) == getattr(spent, name), name
    # The journal has a prompt with the role of each message, of two tokens or so.
    assert spent.input_tokens == 4 + most_prompt_tokens(requests[1])
    assert 0 <= found.input_tokens - spent.input_tokens <= 3
    assert found.total_usd == 0.5
    assert found.lost_calls == 0


def test_a_call_whose_end_nobody_saw_is_lost_and_said_to_be(tmp_path: Path) -> None:
    seen: list[RunSpent] = []

    def look(_: ChatRequest) -> str:
        # The run as it would be found if it were killed here.
        (path,) = (tmp_path / "traces").glob("*.jsonl")
        seen.append(run_spent(Journal(path)))
        return SAID

    async def asked() -> None:
        settings = Settings(
            traces=tmp_path / "traces",
            roles={"producer": "writer"},
            trace=TraceSettings(durability="sync"),
        )
        async with open_session(
            settings, name="asked", environment={}, backends={"writer": ScriptedBackend(look)}
        ) as session:
            for _ in range(2):
                await session.spending.chat(
                    ChatRequest(model="writer", messages=(Message("user", "x" * 300),))
                )

    asyncio.run(asked())
    first, second = seen
    assert (first.calls, first.lost_calls, first.estimated_calls) == (1, 1, 1)
    assert 100 <= first.input_tokens <= 103
    assert (second.calls, second.lost_calls, second.output_tokens) == (2, 1, 3)


PRICES = {"usd_per_million_input_tokens": 2.0, "usd_per_million_output_tokens": 10.0}


def recorded(
    tmp_path: Path, name: str, *, prices: dict[str, float], lasting_ns: int = 0, **said: object
) -> RunSpent:
    """What a run took that is one span."""
    clock = ManualClock()
    with RunTrace(tmp_path, name="run", clock=clock) as trace:
        trace.instant("endpoint", model="m", **prices)
        with trace.span(name, model="m", **said):
            clock.advance(ns=lasting_ns)
    return run_spent(Journal(trace.journal_path))


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        pytest.param(
            "chat",
            {"input_tokens": 1_000, "output_tokens": 100},
            Spent(calls=1, input_tokens=1_000, output_tokens=100, cost_usd=0.003),
            id="a chat",
        ),
        pytest.param("chat", {"from_cache": True}, Spent(), id="a reply from the cache"),
        pytest.param(
            "embed",
            {"input_tokens": 500},
            Spent(calls=1, input_tokens=500, cost_usd=0.001),
            id="vectors",
        ),
        pytest.param("count tokens", {"tokens": 500}, Spent(), id="a count"),
        pytest.param(
            "schema probe",
            {"input_tokens": 20, "output_tokens": 1},
            Spent(calls=1, input_tokens=20, output_tokens=1, cost_usd=0.00005),
            id="a probe",
        ),
        pytest.param(
            "chat",
            {},
            Spent(calls=1, estimated_calls=1, unpriced_calls=1),
            id="tokens that nobody counted",
        ),
    ],
)
def test_what_models_are_paid_for_is_counted(
    tmp_path: Path, name: str, attributes: dict[str, object], expected: Spent
) -> None:
    found = recorded(tmp_path, name, prices=PRICES, **attributes)

    assert found.cost_usd == pytest.approx(expected.cost_usd)
    assert found.total_usd == found.cost_usd
    assert found.cached_calls == int("from_cache" in attributes)
    for counted in ("calls", "tokens", "estimated_calls", "unpriced_calls"):
        assert getattr(found, counted) == getattr(expected, counted), counted


@pytest.mark.parametrize(
    ("prices", "calls_usd", "total_usd"),
    [
        pytest.param({}, None, None, id="no price"),
        pytest.param({"usd_per_hour": 3.0}, None, 1.5, id="by the hour"),
        pytest.param(PRICES, 0.003, 0.003, id="by the token"),
        pytest.param({**PRICES, "usd_per_hour": 3.0}, 0.003, 1.503, id="by both"),
    ],
)
def test_machines_that_are_paid_by_the_hour_are_in_the_total_alone(
    tmp_path: Path, prices: dict[str, float], calls_usd: float | None, total_usd: float | None
) -> None:
    half_an_hour_ns = 1_800 * 10**9
    found = recorded(
        tmp_path,
        "chat",
        prices=prices,
        lasting_ns=half_an_hour_ns,
        input_tokens=1_000,
        output_tokens=100,
    )

    assert found.seconds == 1_800
    assert found.cost_usd == pytest.approx(calls_usd)
    assert found.total_usd == pytest.approx(total_usd)
