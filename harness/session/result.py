"""What a run gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten

from harness.errors import Notice
from harness.graph import (
    Execution,
    Graph,
    NodeFailure,
    NodeSkip,
    Question,
    Rerun,
    RunStatus,
    Skipped,
)
from harness.inference import NOTHING, Spent, most_tokens_of_messages
from harness.session.separation import EvaluatorDraw, EvaluatorPanel, Separation
from harness.trace import Call, CallGroup, Instant, Journal, SpanRecord, calls_of
from harness.trace.calls import charges_of, cost_of, priced_asides
from harness.wiggum import RecordedLoop, WiggumResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """What a run leaves on disk."""

    journal: Path
    """Every record, one per line; of a resumed run, the file of its first part."""
    chrome_trace: Path | None
    """The timeline as Chrome Trace JSON; None if the settings ask for none."""
    perfetto_trace: Path | None
    """The timeline in Perfetto's own format; None if the settings ask for none."""
    audit_log: Path
    """One line per run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run that came to its end: finished, failed, stopped at a limit, or waiting for a person."""

    run_id: str
    pipeline: str
    """The pipeline's name."""
    status: RunStatus = "finished"
    outputs: Mapping[str, object]
    """The output of every node that has one; `Skipped` for a node that was skipped."""
    result: object
    """The output of the pipeline's result node: the last node, or the one that
    `Pipeline(result=…)` names. None without one; if it was skipped, a warning says so."""
    failures: tuple[NodeFailure, ...] = ()
    """In the order of their time."""
    skips: tuple[NodeSkip, ...] = ()
    questions: tuple[Question, ...] = ()
    """Those that wait for an answer."""
    stopped_by: str | None = None
    """The limit that ended the run, in words."""
    reused: tuple[str, ...] = ()
    """Calls of nodes that were not made, because an earlier part of the run has their outputs, or
    another run if the node has a `Cache`."""
    reruns: tuple[Rerun, ...] = ()
    """Calls that were made again although an earlier part of the run has their outputs, and why."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """How often calls of a node or a model were tried again in the last part, by name."""
    replies_used_again: int = 0
    """Replies of models kept from earlier parts, for nodes that had not ended then."""
    parts: int = 1
    """1, and 1 more for each time the run was resumed."""
    had_finished: bool = False
    """Whether nothing was left to do, so that the run was not begun again."""
    loops: tuple[WiggumResult, ...]
    """Revise loops in the order they ended; of a resumed run, those since then."""
    earlier_loops: tuple[RecordedLoop, ...] = ()
    """Loops that had ended before the run was resumed, in nodes that were not called again."""
    models: tuple[CallGroup, ...]
    """The calls of each model and their speed, over all parts of the run."""
    spent: Spent = NOTHING
    """Calls, tokens, money and time of all parts of the run."""
    duration_s: float
    """Of the last part, loading included."""
    files: RunFiles
    separation: Separation | None = None
    """How different producer and evaluators were; None without an evaluator."""
    evaluator_draw: EvaluatorDraw | None = None
    """None if no evaluator was drawn."""
    evaluator_panel: EvaluatorPanel | None = None
    """None if no panel judged."""
    warnings: tuple[Notice, ...] = ()

    def __repr__(self) -> str:
        """The result, shortened, with the figures that people look for."""
        result = shorten(repr(self.result), 80, placeholder=" …")
        return (
            f"RunResult({self.pipeline!r}, {self.status!r}, run_id={self.run_id!r}, "
            f"result={result}, calls={self.spent.calls}, duration_s={self.duration_s:.1f})"
        )

    @property
    def passed(self) -> bool | None:
        """Whether the run finished and every loop met its rubric.

        None if it finished without a loop, so that nothing was judged.
        """
        if self.status != "finished":
            return False
        return all_passed([*self.earlier_loops, *self.loops])


def all_passed(loops: Sequence[WiggumResult | RecordedLoop]) -> bool | None:
    """Whether every loop met its rubric; None if there are no loops."""
    return all(loop.passed for loop in loops) if loops else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The outputs of a pipeline that a node called."""

    outputs: Mapping[str, object]
    """By node."""
    result: object
    """See `RunResult.result`."""


def result_of(graph: Graph, ended: Execution) -> object:
    """The result node's output; None without one."""
    given = ended.outputs.get(graph.result_node)
    return None if isinstance(given, Skipped) else given


def result_notices(graph: Graph, ended: Execution) -> Iterator[Notice]:
    """A warning if the result node was skipped."""
    given = ended.outputs.get(graph.result_node)
    if isinstance(given, Skipped):
        yield Notice(
            code="run.result-skipped",
            message=f"there is no result: its node '{graph.result_node}' was skipped "
            f'({given.reason}); if another gives it, write Pipeline(…, result="…")',
        )


_PAID = ("embed", "schema probe", "tool probe")
"""Spans of what models are asked beside chats, and charge for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpent(Spent):
    """What a run's calls to models took; those to embed, and attempts that failed, are calls too.

    As the beginning of a later part's `Spending` it is what the run's limits have counted so far.
    """

    total_usd: float | None = None
    """Dollars, with machines that are paid by the hour; None when no price is known."""
    cached_calls: int = 0
    """Beside `calls`: answered by the cache, so that no model was asked."""
    lost_calls: int = 0
    """Of `calls`, those that were under way when the run was killed: what they took is not known,
    and of their tokens only the prompt's are here, estimated, where the run records texts."""


def run_spent(journal: Journal) -> RunSpent:
    """Adds up what a run took.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    chats: list[SpanRecord] = []
    asides: list[SpanRecord] = []
    endpoints: list[Instant] = []
    for item in journal.items(SpanRecord, Instant):
        if isinstance(item, SpanRecord) and item.name == "chat":
            chats.append(item)
        elif isinstance(item, SpanRecord) and item.name in _PAID:
            asides.append(item)
        elif isinstance(item, Instant) and item.name == "endpoint":
            endpoints.append(item)
    calls = calls_of(chats)
    sent = [
        call
        for call in (*calls, *priced_asides(asides))
        if not call.was_refused and not call.from_cache
    ]
    charges = charges_of(sent, endpoints)
    uncounted = [c for c in sent if c.status != "ok" or c.count("input_tokens") is None]
    return RunSpent(
        calls=len(sent),
        input_tokens=sum(call.count("input_tokens") or 0 for call in sent)
        + _most_prompt_tokens(uncounted, journal),
        output_tokens=sum(call.count("output_tokens") or 0 for call in sent),
        cost_usd=sum(charges.values()) if charges else None,
        time_ns=journal.duration_ns,
        estimated_calls=len(uncounted),
        unpriced_calls=len(sent) - len(charges),
        total_usd=cost_of(sent, endpoints, run_ns=journal.duration_ns).usd,
        cached_calls=sum(call.from_cache for call in calls),
        lost_calls=sum(call.status == "unfinished" for call in sent),
    )


def _most_prompt_tokens(calls: Sequence[Call], journal: Journal) -> int:
    """Of the prompts of calls whose tokens nobody counted, as far as the journal has them."""
    prompts = Counter(str(call.attributes.get("prompt_sha256")) for call in calls)
    return sum(
        most_tokens_of_messages(text, messages=1) * prompts[prompt]
        for prompt, text in journal.texts(prompts).items()
    )
