"""Rules about calls, nodes and runs that failed, and about what was made again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from harness.analysis.finding import Observation, Observations, counted, ns_text, quoted, span_ids
from harness.analysis.observed import LEAST_COMPARED, SEVERAL, Observed, per_model, times_sent
from harness.analysis.rules import FEWER_CALLS, Remedy, rule
from harness.errors import NodeTimedOut
from harness.inference.providers import Aim
from harness.inference.providers.error_replies import context_overflow
from harness.trace import events
from harness.trace.calls import Call, grouped
from harness.trace.intervals import length_ns, most_at_once
from harness.trace.records import Interval

_OUT_OF_MEMORY = re.compile(
    # By llama.cpp and CUDA, Ollama, vLLM, and the embedded engine, which gives no reason.
    r"out of memory|(?:failed to|unable to|cannot) allocate|requires more system memory"
    r"|no available memory|less than desired \w+ memory|^DoesNotFit|^ModelFileInvalid: .* memory",
    re.IGNORECASE | re.DOTALL,
)

_OR_DAMAGED = " Or the file is damaged: the engine does not say which."
_MORE_BUDGET = "raise [budget] capacity in harness.toml, if the machine has more memory"
# The advice for calls that ended with an error that is not in `_ERRORS`.
_OTHER_ERROR: Final = (
    "The server failed, or the connection to it broke.",
    "L3",
    "see the server's log for that moment",
)
_ERRORS: Mapping[str, Remedy] = {
    "RateLimited": Remedy(
        "The account is at its limit: of calls or tokens a minute, or of calls at once.",
        "L5",
        "make fewer or shorter calls a minute: the pauses are what is over the limit",
        "have the account's limit raised",
    ),
    "Overloaded": Remedy(
        "The server was loading, or had more calls than it takes, of this run or of others.",
        "L4a",
        "begin when the server has loaded",
        "see what else the server answers, if this run makes one call at a time",
        FEWER_CALLS,
        Aim.ANSWER_MORE_AT_ONCE,
    ),
    "ContextOverflow": Remedy(
        "Prompt and reply together are longer than the model's context.",
        "L6",
        "shorten the prompt, or lower max_output_tokens",
        Aim.LONGER_CONTEXT,
    ),
    "CallTimeout": Remedy(
        "A call took longer than the limit of time that the error names.",
        "L3",
        "raise that limit under [endpoints.{tag}]",
        "ask for less in one call: a lower max_output_tokens, a shorter prompt",
        "see the server's log for what it did meanwhile",
    ),
    "EndpointUnreachable": Remedy(
        "Nothing answered: the server was not started, has gone, or is somewhere else.",
        "L3",
        "see the server's log for why it ended",
        "check url under [endpoints.{tag}]",
    ),
    **dict.fromkeys(
        # Their messages say what is wrong, and how it is mended.
        (
            "AuthenticationFailed",
            "ModelNotFound",
            "ModelFileInvalid",
            "call.certificate-refused",
            "call.no-tls",
        ),
        Remedy(
            "The endpoint's settings do not fit its server or file.",
            "L5",
            "check what the error names: under [endpoints.{tag}], or the variable",
        ),
    ),
}
"""Class of the error that ended a call, or its code if that is more exact → the advice."""


_UNREACHED = "EndpointUnreachable"  # the error of a call that no server received
_REPLY_ERRORS = {"ReplyInvalid", "ReplyCut", "ReplyEmpty"}
"""Errors of replies that came, and were not what was asked for."""


@dataclass(frozen=True, slots=True)
class _Failures:
    """The calls to one endpoint that ended with errors of one class, and what became of them."""

    model: str
    error_class: str
    calls: Sequence[Call]
    retries: Sequence[events.RetryEvent]
    fallbacks: Sequence[events.Fallback]  # the calls that another endpoint answered instead

    @property
    def case(self) -> str:
        """The key of the advice in `_ERRORS`; the error's class if it has none there."""
        code = self.calls[-1].error_code if self.calls else None
        return code if code is not None and code in _ERRORS else self.error_class

    @property
    def is_outage(self) -> bool:
        """Whether the endpoint could not be reached several times."""
        return self.case == _UNREACHED and len(self.calls) >= LEAST_COMPARED

    @property
    def lost(self) -> list[Interval]:
        """The time in the calls, and in the pauses before they were made again."""
        return [*self.calls, *(retry.pause for retry in self.retries)]


def _failures(observed: Observed) -> list[_Failures]:
    """The failures of a run, by endpoint and class of the error."""
    fallbacks = observed.recorded[events.Fallback]
    # (endpoint, class of the error) → the calls, and the same for what became of them.
    calls = grouped(observed.failed, by=lambda call: (call.model, call.error_class))
    retried = grouped(observed.retries, by=lambda retry: (str(retry.model), retry.reason))
    moved = grouped(fallbacks, by=lambda event: (_failed_endpoint(observed, event), event.reason))
    return [
        _Failures(*key, calls.get(key, ()), retried.get(key, ()), moved.get(key, ()))
        for key in dict.fromkeys((*calls, *retried, *moved))
    ]


def _failed_endpoint(observed: Observed, fallback: events.Fallback) -> str:
    """The endpoint that could not answer: the intended one, or one asked in its place."""
    fallbacks = observed.server(fallback.model).fallback
    if fallback.to not in fallbacks:
        return fallback.model
    # Each endpoint is asked when the one before it in the list has failed.
    place = fallbacks.index(fallback.to)
    return fallbacks[place - 1] if place else fallback.model


@rule(
    "out-of-memory",
    "Out of memory at start: weights, KV cache for the whole context, and buffers are allocated "
    "before the first call, and there was no room for them.",
    "L3",
    Aim.FIT_AT_START,
    "use smaller weights",
    cases={
        "later": Remedy(
            "Out of memory later: the KV cache grows from call to call, with the length of prompts "
            "and the number of calls at once.",
            "L3",
            Aim.FIT_LATER,
            "cap what a call can take: fewer passages, a lower max_output_tokens",
        )
    },
)
def out_of_memory(observed: Observed) -> Observations:
    """A model could not be brought into memory, or ran out of it after calls that came through."""
    failed = [call for call in observed.failed if _ran_out(call)]
    if not failed:
        return
    server = observed.server(failed[0].model)
    answered = observed.by_model.get(server.model, ())
    # If the model ever replied, it fitted into memory at start, and what it needs grew later.
    before = [call for call in answered if call.end_ns <= failed[0].end_ns]
    doubt = _OR_DAMAGED if failed[0].error_class == "ModelFileInvalid" else ""
    yield Observation(
        severity="error",
        model=server.model,
        case="later" if before else "",
        seen=f"After {counted(len(before), 'call')} that succeeded, '{server.model}' ran out of "
        f"memory {counted(len(failed), 'time')}: {failed[0].error}"
        if before
        else f"'{server.model}' was never loaded; its first call ended with: {failed[0].error}"
        f"{doubt}",
        spans=span_ids(failed),
        first_moves=(_MORE_BUDGET,) if server.is_in_process and not before else (),
        lost_ns=length_ns(failed),
    )


@rule("retries", *_OTHER_ERROR, cases=_ERRORS, explains=("retry", "failed"))
def retries(observed: Observed) -> Observations:
    """Calls were refused and made again, or answered by another model than the intended one."""
    for failures in _failures(observed):
        # The rule `out-of-reach` reports outages.
        if failures.is_outage:
            continue
        if failures.fallbacks or len(failures.retries) >= SEVERAL:
            yield _made_again(observed, failures)


def _made_again(observed: Observed, failures: _Failures) -> Observation:
    lost_ns = length_ns(failures.lost)
    model = failures.model
    outcomes = []
    if failures.retries:
        outcomes.append(f"{len(failures.retries)} were made again after a pause")
    if failures.fallbacks:
        others = quoted(fallback.to for fallback in failures.fallbacks)
        outcomes.append(
            f"{len(failures.fallbacks)} went to {others}, which writes and judges differently"
        )
    error = f" The last ended with: {failures.calls[-1].error}" if failures.calls else ""
    return Observation(
        model=model,
        case=failures.case,
        seen=f"Of the calls to '{model}' that ended with {failures.error_class}, "
        f"{' and '.join(outcomes)}. The calls that failed and the pauses took "
        f"{observed.share(lost_ns)}.{error}",
        first_moves=_fewer_at_once(observed, failures),
        spans=span_ids(failures.calls),
        lost_ns=lost_ns,
        # Another model writes and judges differently.
        whatever_it_cost=bool(failures.fallbacks),
    )


def _fewer_at_once(observed: Observed, failures: _Failures) -> tuple[str, ...]:
    """The move against a limit of calls at once: as many as were answered together."""
    if failures.error_class != "RateLimited":
        return ()
    model = failures.model
    sent = times_sent(observed.by_model.get(model, ()))
    # One that was let in as another ended is seen beside it until that reply has come over here.
    least_ns = median(time.duration_ns for time in sent) / 2 if sent else 0
    answered = most_at_once(sent, least_ns=least_ns)
    under_way = most_at_once(call for call in observed.calls if call.model == model)
    if not 0 < answered < under_way:
        return ()
    limit = f"max_parallel = {answered} under [endpoints.{{tag}}]"
    return (f"if it limits calls at once: {observed.server(model).filled(limit)}",)


@rule("failed-calls", *_OTHER_ERROR, cases=_ERRORS, explains=("failed",))
def failed_calls(observed: Observed) -> Observations:
    """Calls failed for good, of something else than memory or an endpoint that was out of reach."""
    repeated = {*span_ids(_repeated_attempts(observed))}

    def was_repeated(span: int, time_ns: int) -> bool:
        # By a later part of the run, or by a later attempt of a node around it.
        around = (span, *observed.around(span))
        return observed.journal.resumed_after(time_ns) or not repeated.isdisjoint(around)

    for failures in _failures(observed):
        outcomes = (*failures.retries, *failures.fallbacks)
        calls = [c for c in failures.calls if not (_ran_out(c) or was_repeated(c.id, c.end_ns))]
        count = len(calls) - sum(not was_repeated(o.span or 0, o.time_ns) for o in outcomes)
        if count <= 0 or failures.is_outage:
            continue
        yield Observation(
            severity="error",
            model=failures.model,
            case=failures.case,
            seen=f"{counted(count, 'call')} to '{failures.model}' failed for good, the last with "
            f"this: {calls[-1].error}",
            first_moves=_fewer_at_once(observed, failures),
            spans=span_ids(calls),
            target=_context_for(calls) if failures.error_class == "ContextOverflow" else 0,
        )


def _repeated_attempts(observed: Observed) -> list[events.NodeAttempt]:
    """The attempts of nodes that had a later one."""
    attempts = observed.nodes.values()
    last_ns = {node.caption: node.start_ns for node in attempts if node.attempt}
    return [node for node in attempts if node.start_ns < last_ns.get(node.caption, 0)]


def _context_for(calls: Sequence[Call]) -> int:
    """The context that each prompt and its longest reply fit into; 0 if they are unknown."""
    needed = []
    for call in calls:
        prompt_tokens = call.input_tokens
        if prompt_tokens is None:
            # A server that refuses a prompt says how long it is.
            prompt_tokens = context_overflow(call.error or "", endpoint=call.model).prompt_tokens
        if prompt_tokens is None or call.max_output_tokens is None:
            return 0
        needed.append(prompt_tokens + call.max_output_tokens)
    return max(needed)


@rule(
    "failed-run",
    "An error outside of model calls failed the run, or a row of it.",
    "L6",
    "correct what the error names, and run it again",
    cases={
        "unfinished": Remedy(
            "The process was killed, or the run is still going.",
            "L6",
            "see what ended the process: its terminal, or the system's log",
        ),
        "reply": Remedy(
            "A model replied, and not with what was asked for: cut off, empty, or not of the type.",
            "L6",
            "ask again after a wrong reply: attempts=3, or Retry(3) of the node",
            "for replies that are cut: a higher max_output_tokens, or on_cut",
            "take a model or a server that constrains what it writes by the schema",
        ),
    },
    explained_by=("failed-calls", "out-of-memory", "out-of-reach"),
)
def failed_run(observed: Observed) -> Observations:
    """The run did not come to its end."""
    ended = observed.journal.ended
    if ended is not None and ended.status == "error":
        failed = [node for node in observed.nodes.values() if node.status == "error"]
        is_reply_error = any(node.error_class in _REPLY_ERRORS for node in failed)
        yield Observation(
            severity="error",
            case="reply" if is_reply_error else "",
            seen=f"The run ended with: {ended.error}",
            spans=span_ids(failed),
        )
    elif ended is None:
        open_calls = [
            call
            for call in observed.calls
            # Calls that were open when an earlier part was killed were made again.
            if call.status == "unfinished" and not observed.journal.resumed_after(call.end_ns)
        ]
        under_way = f", and {counted(len(open_calls), 'call')} had not ended" if open_calls else ""
        yield Observation(
            severity="hint",
            case="unfinished",
            seen=f"The journal has no end{under_way}.",
            spans=span_ids(open_calls),
        )


def _ran_out(call: Call) -> bool:
    return _OUT_OF_MEMORY.search(call.error or "") is not None


@rule(
    "out-of-reach",
    _ERRORS[_UNREACHED].meaning,
    "L3",
    *_ERRORS[_UNREACHED].moves,
    "name an endpoint to ask instead: fallback under [endpoints.{tag}] in harness.toml",
    cases={"replaced": _ERRORS[_UNREACHED]},
    explains=("failed", "retry"),
)
def out_of_reach(observed: Observed) -> Observations:
    """An endpoint could not be reached several times."""
    for failures in _failures(observed):
        if failures.is_outage:
            yield _outage(observed, failures)


def _outage(observed: Observed, failures: _Failures) -> Observation:
    failed = failures.calls
    replaced = len(failures.fallbacks)
    from_ns = failed[0].start_ns - observed.run.start_ns
    until_ns = failed[-1].end_ns - observed.run.start_ns
    # Calls that were held back until the server was looked for again.
    holds = observed.recorded.times_of(events.Hold)
    is_back = any(
        call.end_ns > failed[-1].end_ns and call.status == "ok"
        for call in observed.by_model.get(failures.model, ())
    )
    return Observation(
        # Only time was lost if the server came back, or others answered each call.
        severity="warning" if is_back or replaced >= len(failed) else "error",
        model=failures.model,
        # The advice to name a fallback is of no use if there is one.
        case="replaced" if replaced else "",
        seen=f"'{failures.model}' could not be reached from {ns_text(from_ns)} to "
        f"{ns_text(until_ns)} into the run. {counted(len(failed), 'call')} to it failed, of which "
        f"{replaced} went to another endpoint.",
        spans=span_ids(failed),
        lost_ns=length_ns([*failures.lost, *holds]),
        whatever_it_cost=True,
    )


@rule(
    "asked-again",
    "Replies were not of the type that was asked for, and the models were asked again: each costs "
    "a whole call. Without a schema that the server enforces, the prompt only describes it.",
    "L3",
    Aim.ENFORCE_SCHEMAS,
    "say in the prompt what the reply has to look like, with an example",
    "take a server or a model that constrains what it writes by the schema",
    cases={
        "enforced": Remedy(
            "The server held the replies to their schema, and the type refused what they say, as a "
            "validator does: each is asked for again, which costs a whole call.",
            "L6",
            "say in the prompt what the type accepts, with an example",
            "put into the type's schema what can be put there: an enum, a pattern",
        )
    },
    explains=("decode", "prefill"),
)
@per_model
def asked_again(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Calls that follow a reply which could not be used."""
    typed = [call for call in calls if call.structured]
    repeated = [call for call in typed if call.asks_again]
    if not repeated:
        return
    lost_ns = length_ns(repeated)
    unenforced = sum(call.schema in {"advisory", "ignored"} for call in typed)
    cause = f"; the server did not enforce the schema of {unenforced}" if unenforced else ""
    enforced = sum(call.schema == "enforced" for call in repeated)
    yield Observation(
        case="enforced" if 2 * enforced > len(repeated) else "",
        seen=f"{len(repeated)} of {counted(len(typed), 'call')} to '{model}' for a typed reply "
        f"asked again after one that could not be used ({observed.share(lost_ns)}){cause}.",
        spans=span_ids(repeated),
        lost_ns=lost_ns,
    )


@rule(
    "filled-context",
    "Prompt and reply together filled the model's context: the ends of these replies are missing.",
    "L6",
    "shorten the prompts, or ask for less in one call",
    Aim.LONGER_CONTEXT,
    cases={
        "unlimited": Remedy(
            "The server ended these replies at a limit of its own, or where its context was full: "
            "their ends are missing.",
            "L6",
            "set max_output_tokens in these calls, which sent none",
            "shorten the prompts, or ask for less in one call",
            Aim.LONGER_CONTEXT,
        )
    },
)
@per_model
def filled_context(_observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Replies were cut because the context was full; a set max_output_tokens may intend that."""
    cut = [call for call in calls if call.was_cut and not reached_own_limit(call)]
    if not cut:
        return
    is_unlimited = all(call.max_output_tokens is None for call in cut)
    cause = "at a limit that they did not set" if is_unlimited else "because its context was full"
    yield Observation(
        severity="warning" if 2 * len(cut) > len(calls) else "hint",
        case="unlimited" if is_unlimited else "",
        seen=f"{len(cut)} of {counted(len(calls), 'reply', 'replies')} by '{model}' were cut off "
        f"{cause}.",
        spans=span_ids(cut),
        target=_context_for(cut),
    )


def reached_own_limit(call: Call) -> bool:
    """Whether a reply that was cut is as long as its call allows; True if its length is unknown."""
    if call.max_output_tokens is None:
        return False
    return call.output_tokens is None or call.output_tokens >= call.max_output_tokens


@rule(
    "node-retries",
    "Attempts at nodes failed and were made again, after a pause: the run waited for both.",
    "L6",
    "see why the attempts failed: the error is in the node's span",
    "shorten the pauses: Retry(n, first_delay_s=…) of the node",
    cases={
        "timeout": Remedy(
            "A node's timeout is shorter than its work takes: each attempt starts over, and what "
            "its calls had written is lost.",
            "L6",
            "raise the node's Timeout(…)",
            "ask for less in one call: a lower max_output_tokens, a shorter prompt",
        )
    },
    explains=("node retry",),
)
def node_retries(observed: Observed) -> Observations:
    """Attempts at nodes that failed and were made again."""
    pauses = [r.pause for r in observed.recorded[events.RetryEvent] if r.node is not None]
    failed = [node for node in _repeated_attempts(observed) if node.status == "error"]
    if not failed:
        return
    lost_ns = length_ns([*pauses, *failed])
    errors = Counter(node.error_class for node in failed)
    yield Observation(
        case="timeout" if NodeTimedOut.__name__ in errors else "",
        seen=f"{counted(len(failed), 'attempt')} at {quoted(node.caption for node in failed)} "
        f"failed ({', '.join(f'{count} with {name}' for name, count in errors.most_common())}). "
        f"The attempts and {ns_text(length_ns(pauses))} of pauses took "
        f"{observed.share(lost_ns)}.",
        spans=span_ids(failed),
        lost_ns=lost_ns,
    )
