"""Loops whose models answer from a script that hangs on what they are asked, and on nothing else.

So a loop that is begun again gets the same answers. The reviser, the meter and the loop are the
real ones. The evaluator here stands in for one that judges by a model: it asks once per draft, by
way of the meter, and takes its scores from the reply.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clients import in_a_loop, priced
from manual_clock import ManualClock

from harness.errors import CallTimeout, EvaluatorAbstained, InferenceError, StreamCut
from harness.inference import ChatRequest, Completion, Limits, Message, Usage
from harness.rubric import Checked, Dimension, DimensionScore, Draft, Finding, Rubric, reach_verdict
from harness.trace import Journal, Record, RunStarted, Tracer
from harness.trace.journal_line import encode, seal
from harness.trace.records import SCHEMA_VERSION
from harness.wiggum import LoopPolicy, Reviser, Round, WiggumResult, revise_until_met

RUBRIC = Rubric(
    id="essay",
    title="Essay",
    repeats=1,
    dimensions=(
        Dimension(name="clear", judge="Is it clear?"),
        Dimension(name="useful", judge="Is it useful?"),
    ),
)
SEED_STEP = 1_000
"""Between the seeds of two candidates; the first has the number of its round."""
CUT = StreamCut("after 12 tokens", endpoint="judge")
TIMEOUT = CallTimeout("30 s without a token", endpoint="writer")
NO_VERDICT = "I like it."
PRICE = priced(usd_per_million_input_tokens=1.0, usd_per_million_output_tokens=5.0)

Reply = str | InferenceError | None
"""A text to answer with, an error to raise, or None for no answer ever."""


def scores(clear: float, useful: float | None = None, *, section: int | None = None) -> str:
    """What an evaluator replies; a section is where it finds what it has against the draft."""
    return json.dumps([clear, clear if useful is None else useful, section])


def completion(text: str, *, prompt: str = "", model: str = "m", at_ns: int = 0) -> Completion:
    """A whole reply, with four characters a token."""
    return Completion(
        text=text,
        reasoning="",
        finish_reason="stop",
        usage=Usage(
            input_tokens=math.ceil(len(prompt) / 4),
            output_tokens=math.ceil(len(text) / 4),
            cached_tokens=None,
        ),
        sent_ns=at_ns,
        first_token_ns=at_ns,
        phases=(),
        model_id=model,
    )


@dataclass
class World:
    """The models, as a script has them, and what they were asked."""

    produce: Callable[[int, int], Reply]
    """What the producer replies for a round, by the number of the candidate, from 1."""
    judge: Callable[[str], Reply]
    """What the evaluator replies to a draft."""
    call_s: float = 0.0
    """How long each call takes, by the clock."""
    clock: ManualClock = field(default_factory=ManualClock)
    requests: list[ChatRequest] = field(default_factory=list)
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    """That a call waits for an answer which will not come."""
    tokens: int = 0
    """What all calls took."""

    async def ask(self, request: ChatRequest) -> Completion:
        self.requests.append(request)
        prompt = "\n".join(message.content for message in request.messages)
        if request.role == "producer":
            candidate, number = divmod(request.seed, SEED_STEP)
            reply = self.produce(number, candidate + 1)
        else:
            reply = self.judge(prompt)
        began_ns = self.clock()
        await asyncio.sleep(0)
        if reply is None:
            self.stalled.set()
            await asyncio.Event().wait()
        left_s = math.inf if request.timeout_s is None else request.timeout_s
        # Calls that are made together take their time together.
        over_ns = began_ns + round(min(self.call_s, left_s) * 1e9)
        self.clock.advance(ns=max(0, over_ns - self.clock()))
        if left_s < self.call_s:
            raise CallTimeout("not in time", endpoint=request.model)
        self.tokens += math.ceil(len(prompt) / 4)
        if isinstance(reply, InferenceError):
            raise reply
        said = completion(reply, prompt=prompt, model=request.model, at_ns=self.clock())
        self.tokens += said.usage.output_tokens
        return said

    @property
    def produced_for(self) -> list[int]:
        """The rounds that the producer was asked for a draft of, in order, each once."""
        asked = (r.seed % SEED_STEP for r in self.requests if r.role == "producer")
        return list(dict.fromkeys(asked))

    @property
    def evaluated(self) -> list[str]:
        """The drafts that the evaluator was asked about, in order."""
        return [r.messages[-1].content for r in self.requests if r.role == "evaluator"]


class ScriptedEvaluator:
    """Asks once for each draft, and believes what it is told."""

    def __init__(self, *, ask, rubric: Rubric = RUBRIC, check=lambda _: 0, source="judged") -> None:
        self.rubric = rubric
        self._source = source
        self._check = check
        self._ask = ask

    def _request(self, draft: Draft) -> ChatRequest:
        return ChatRequest(
            model="judge",
            role="evaluator",
            messages=(Message("user", draft.text),),
            max_output_tokens=50,
        )

    def most_tokens(self, draft: Draft) -> int:
        return math.ceil(len(draft.text) / 3) + 50

    def checked(self, draft: Draft) -> Checked:
        return Checked(rank=(False, True, self._check(draft.text)))

    async def evaluate(self, draft: Draft):
        completion = await self._ask(self._request(draft))
        try:
            *points, section = json.loads(completion.text)
        except ValueError:
            raise EvaluatorAbstained("no score could be read") from None
        return verdict_of(points, draft, section, self.rubric, source=self._source)


def verdict_of(
    points: Sequence[float],
    draft: Draft,
    section,
    rubric=RUBRIC,
    *,
    source="judged",
):
    """The verdict of these scores."""
    findings: tuple[Finding, ...] = ()
    if section is not None and draft.sections:
        index = section % len(draft.sections)
        findings = (Finding("say more", draft.sections[index].title, index),)
    judged = [
        DimensionScore(name=d.name, score=p, source=source, reason="thin", findings=findings)
        for d, p in zip(rubric.dimensions, points, strict=True)
    ]
    return reach_verdict(rubric, judged)


FIRST = Draft(text="Draft number 1.", task="Write.")
PARTED = Draft(text="# One\n\nText number 1.\n\n# Two\n\nSome more.\n", task="Write.")


async def run_loop(
    world: World,
    *,
    first: Draft = FIRST,
    limits: Limits | None = None,
    policy: LoopPolicy | None = None,
    rounds: Sequence[Round] = (),
    sink=None,
    rubric: Rubric = RUBRIC,
    mode="sections",
    priced: bool = False,
    candidates: int = 1,
    finalists: int = 1,
    at_once: int | None = None,
    check: Callable[[str], float] = lambda _: 0,
    source="judged",
) -> WiggumResult:
    prices = {"writer": PRICE, "judge": PRICE} if priced else {}
    tracer = Tracer(sink, clock=world.clock)
    with in_a_loop(world.ask, limits, prices=prices, clock=world.clock) as (ask, meter):
        evaluator = ScriptedEvaluator(rubric=rubric, ask=ask, check=check, source=source)
        return await revise_until_met(
            first,
            evaluator=evaluator,
            reviser=Reviser(
                ask=ask,
                model="writer",
                max_output_tokens=100,
                mode=mode,
                candidates=candidates,
                finalists=finalists,
                at_once=at_once,
                check=evaluator.checked,
                tracer=tracer,
            ),
            meter=meter,
            tracer=tracer,
            policy=policy,
            rounds=rounds,
        )


def digest_choice(text: str, choices: Sequence):
    """One of them, by a text's hash: the same for the same text in every process."""
    return choices[int(hashlib.sha256(text.encode()).hexdigest(), 16) % len(choices)]


def journal_of(records: Sequence[Record], path: Path) -> Journal:
    """The journal that a run with these records leaves."""
    started = RunStarted(SCHEMA_VERSION, "20260101T000000Z-000000000000", "test", 0, 0, 1)
    path.write_bytes(b"".join(seal(encode(one), n) for n, one in enumerate((started, *records), 1)))
    return Journal(path)
