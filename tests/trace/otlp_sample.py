"""A run as pipelines leave it, made by hand, and what arrives of it at a collector."""

from pathlib import Path

from otlp_receiver import Receiver

from harness.trace import Journal, ManualClock, RunTrace, TraceOptions
from harness.trace.otlp import send_otlp

NEW_YEAR_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
QUIET = TraceOptions(timelines=())
PROMPT = "[system]\nBe brief.\n\n[user]\nWhat is 概要?\n\nSay."
REPLY = "An abstract 🐣."


def new_run(directory: Path, clock: ManualClock) -> RunTrace:
    return RunTrace(
        directory, name="essay", clock=clock, wall_ns=lambda: NEW_YEAR_NS, options=QUIET
    )


def chat(trace: RunTrace, clock: ManualClock, *, model: str = "writer", reply: str = REPLY) -> None:
    """A call, as `Traced` leaves it."""
    with trace.span(
        "chat",
        track=f"model {model}",
        label="chat producer",
        model=model,
        role="producer",
        temperature=0.5,
        seed=None,
        max_output_tokens=64,
        structured=False,
        prompt_sha256=trace.content(PROMPT),
    ) as span:
        trace.flow("call", source=span.parent, target=span.id)
        clock.advance(ms=3)
        trace.completed_span("prefill", start_ns=clock() - 1_000_000, end_ns=clock(), source="x")
        trace.instant("first token", at_ns=clock() - 7)
        span.set(
            ttft_ns=2_999_993,
            cost_usd=0.25,
            model_id=f"{model}-2026",
            input_tokens=31,
            cached_tokens=0,
            output_tokens=4,
            finish_reason="stop",
            reply_sha256=trace.content(reply),
        )


def evaluate(trace: RunTrace, clock: ManualClock, draft: str, *, of: int | None) -> None:
    with trace.span(
        "evaluate", label="evaluate round 1", draft_sha256=trace.content(draft)
    ) as span:
        trace.flow("draft", source=of, target=span.id)
        clock.advance(ms=2)
        span.set(
            composite=6.5,
            passed=False,
            scores={"tone": 4.0, "length": 9},
            evaluator="judge",
            findings=["tone: it says 'abstract'"],
        )


def essay_run(directory: Path) -> Journal:
    """A draft, evaluated, revised and evaluated again; then one that no span wrote."""
    clock = ManualClock(start_ns=5_000)
    with new_run(directory, clock) as trace:
        trace.instant("endpoint", model="writer", backend="litellm", model_id="anthropic/claude-9")
        trace.instant("endpoint", model="judge", url="http://gpu:8000/v1", model_id="qwen")
        with trace.span("run", label="essay"):
            clock.advance(ms=1)
            with trace.span("draft") as draft:
                chat(trace, clock)
            with trace.span("wiggum", rubric="essay"):
                with trace.span("recall", query="What?", limit=2) as recall:
                    recall.set(hits=[{"id": "a1", "title": "Abstracts", "score": 0.5}])
                evaluate(trace, clock, REPLY, of=draft.id)
                trace.instant("retry", reason="RateLimited", attempt=1, detail="said 'abstract'")
                with trace.span("revise", focus=["tone"]) as revise:
                    revise.set(draft_sha256=trace.content("Better."))
                clock.advance(ms=4_000)
                evaluate(trace, clock, "Better.", of=revise.id)
                evaluate(trace, clock, "Mine.", of=None)
    return Journal(trace.journal_path)


def sent_spans(journal: Journal, *, content: bool = False) -> list:
    """A run's spans as they arrive."""
    with Receiver() as receiver:
        send_otlp(journal, endpoint=receiver.url, content=content)
    return [span for posted in receiver.posted for span in posted.spans]


def by_name(spans: list) -> dict:
    return {span.name: span for span in spans}
