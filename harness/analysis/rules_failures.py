"""Rules about calls, nodes and runs that failed, and about what was made again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from harness.analysis.facts import LEAST_COMPARED, SEVERAL, Observed, per_model, ttft
from harness.analysis.finding import Expected, Observation, counted, ids, named, said_ns
from harness.analysis.rules import FEWER_CALLS, Remedy, rule
from harness.errors import NodeTimedOut
from harness.inference.providers import Aim
from harness.inference.providers.error_replies import context_overflow
from harness.trace import events
from harness.trace.calls import Call
from harness.trace.intervals import length_ns, most_at_once
from harness.trace.records import Interval

_OUT_OF_MEMORY = re.compile(
    # llama.cpp and CUDA; Ollama; vLLM; the embedded engine, which does not say why it fails to load
    r"out of memory|(?:failed to|unable to|cannot) allocate|requires more system memory"
    r"|no available memory|less than desired \w+ memory|^DoesNotFit|^ModelFileInvalid: .* memory",
    re.IGNORECASE | re.DOTALL,
)

_OR_DAMAGED = " Or the file is damaged: the engine does not say which."
_MORE_BUDGET = "raise [budget] capacity in harness.toml, if the machine has more memory"


_OTHER_ERROR = Remedy(
    "The server failed, or the connection to it broke.",
    "L3",
    ("see the server's log for that moment",),
)
_ERRORS: Mapping[str, Remedy] = {
    "RateLimited": Remedy(
        "The account is at its limit: of calls or tokens a minute, or of calls at once.",
        "L5",
        (
            "make fewer or shorter calls a minute: the pauses are what is over the limit",
            "have the account's limit raised",
        ),
    ),
    "Overloaded": Remedy(
        "The server was loading, or had more calls than it takes, of this run or of others.",
        "L4a",
        (
            "begin when the server has loaded",
            "see what else the server answers, if this run makes one call at a time",
            FEWER_CALLS,
            Aim.ANSWER_MORE_AT_ONCE,
        ),
    ),
    "ContextOverflow": Remedy(
        "Prompt and reply together are longer than the model's context.",
        "L6",
        ("shorten the prompt, or lower max_output_tokens", Aim.LONGER_CONTEXT),
    ),
    "CallTimeout": Remedy(
        "A call took longer than the limit of time that the error names.",
        "L3",
        (
            "raise that limit under [endpoints.{tag}]",
            "ask for less in one call: a lower max_output_tokens, a shorter prompt",
            "see the server's log for what it did meanwhile",
        ),
    ),
    "EndpointUnreachable": Remedy(
        "Nothing answered: the server was not started, has gone, or is somewhere else.",
        "L3",
        ("see the server's log for why it ended", "check url under [endpoints.{tag}]"),
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
            ("check what the error names: under [endpoints.{tag}], or the variable",),
        ),
    ),
}
"""By the class of the error that ended calls, or by its code where that says more."""


UNREACHED = "EndpointUnreachable"
"""The error of a call that no server received."""
_OF_REPLIES = {"ReplyInvalid", "ReplyCut", "ReplyEmpty"}
"""Errors of replies that came, and were not what was asked for."""


def out_of_reach_calls(observed: Observed) -> dict[str, list[Call]]:
    """By endpoint, the calls that did not reach it; one or two missed calls are left out."""
    missed: defaultdict[str, list[Call]] = defaultdict(list)
    for call in observed.calls:
        if call.status == "error" and _error_of(call) == UNREACHED:
            missed[call.model].append(call)
    return {model: calls for model, calls in missed.items() if len(calls) >= LEAST_COMPARED}


def _error_of(call: Call) -> str:
    """The class of the error that ended a call, or its code where that says more."""
    code = call.error_code or ""
    return code if code in _ERRORS else call.error_class


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
            (Aim.FIT_LATER, "cap what a call can take: fewer passages, a lower max_output_tokens"),
        )
    },
)
def out_of_memory(observed: Observed) -> Observation | None:
    """A model could not be brought into memory, or ran out of it after calls that came through."""
    failed = [c for c in observed.calls if c.status == "error" and _ran_out(c)]
    if not failed:
        return None
    server = observed.server(failed[0].model)
    answered = observed.by_model.get(server.model, ())
    # Whether it ever worked tells memory at start from memory that grew.
    before = [call for call in answered if call.end_ns <= failed[0].end_ns]
    damaged = "" if before or failed[0].error_class != "ModelFileInvalid" else _OR_DAMAGED
    return Observation(
        severity="error",
        model=server.model,
        case="later" if before else "",
        seen=(
            f"After {counted(len(before), 'call')} that succeeded, '{server.model}' ran out of "
            f"memory {counted(len(failed), 'time')}: {failed[0].error}"
            if before
            else f"'{server.model}' was never loaded; its first call ended with: {failed[0].error}"
        )
        + damaged,
        spans=ids(failed),
        first=(_MORE_BUDGET,) if server.is_in_process and not before else (),
        lost_ns=length_ns(failed),
    )


@rule(
    "retries",
    *_OTHER_ERROR[:2],
    *_OTHER_ERROR.moves,
    cases=_ERRORS,
    explains=("retry", "failed"),
    explained_by=("out-of-reach",),
)
def retries(observed: Observed) -> Observation | None:
    """Calls were refused and tried again, or answered by another model than the one meant."""
    return _paused(observed) or _fell_back(observed)


def _paused(observed: Observed) -> Observation | None:
    pauses = observed.retries
    causes = {(pause.model, pause.reason) for pause in pauses}
    tried = [
        c for c in observed.calls if c.status == "error" and (c.model, c.error_class) in causes
    ]
    lost_ns = length_ns([*(retry.pause for retry in pauses), *tried])
    if len(pauses) < SEVERAL or not observed.matters(lost_ns):
        return None
    reason, listed = _commonest(pause.reason for pause in pauses)
    model, _ = _commonest(str(pause.model) for pause in pauses if pause.reason == reason)
    failed = [call for call in tried if call.model == model]
    error = f" The last ended with: {failed[-1].error}" if failed else ""
    # A limit of calls at once lets in as many as were answered together.
    let_in = most_at_once(observed.by_model.get(model, ()))
    crowd = most_at_once(call for call in observed.calls if call.model == model)
    bound = f"if it limits calls at once: max_parallel = {let_in} under [endpoints.{model}]"
    return Observation(
        model=model,
        case=reason,
        seen=f"Calls were retried {len(pauses)} times ({listed}), most of them to '{model}'. The "
        f"calls that failed and the pauses took {observed.said(lost_ns)}.{error}",
        first=(bound,) if reason == "RateLimited" and 0 < let_in < crowd else (),
        spans=ids(failed),
        lost_ns=lost_ns,
    )


@rule("failed-calls", *_OTHER_ERROR[:2], *_OTHER_ERROR.moves, cases=_ERRORS, explains=("failed",))
def failed_calls(observed: Observed) -> Observation | None:
    """Calls failed for good, of something else than memory or an endpoint that was out of reach."""
    # What failed in an earlier part was made again.
    over = observed.journal.resumed_after
    failed = [c for c in observed.calls if c.status == "error" and not _ran_out(c)]
    failed = [call for call in failed if not over(call.end_ns)]
    retries = [retry for retry in observed.retries if not over(retry.time_ns)]
    fallbacks = [event for event in observed.seen[events.Fallback] if not over(event.time_ns)]
    final = Counter((call.model, call.error_class) for call in failed)
    # A call that was tried again, or answered elsewhere, did not fail for good.
    final -= Counter((str(retry.model), retry.reason) for retry in retries)
    final -= Counter((_failed_endpoint(observed, event), event.reason) for event in fallbacks)
    for model in out_of_reach_calls(observed):
        # `out-of-reach` tells of these.
        del final[model, UNREACHED]
    if not final:
        return None
    ((model, kind), count), *_ = final.most_common()
    alike = [call for call in failed if (call.model, call.error_class) == (model, kind)]
    return Observation(
        severity="error",
        model=model,
        case=_error_of(alike[-1]),
        seen=f"{counted(sum(final.values()), 'call')} failed for good; {count} of '{model}' with "
        f"this: {alike[-1].error}",
        spans=ids(alike),
        wanted=(aim := _context_for(alike) if kind == "ContextOverflow" else None),
        expected=Expected("such failures", count, 0, "calls") if aim else None,
    )


def _context_for(calls: Sequence[Call]) -> tuple[Aim, str] | None:
    """For each prompt and the reply that was allowed; None where they are unsaid."""
    needed = []
    for call in calls:
        room, prompt_tokens = call.max_output_tokens, call.input_tokens
        # A server that refuses a prompt says how long it is.
        if prompt_tokens is None:
            prompt_tokens = context_overflow(call.error or "", endpoint=call.model).prompt_tokens
        if prompt_tokens is None or room is None:
            return None
        needed.append(prompt_tokens + room)
    return Aim.LONGER_CONTEXT, f"{max(needed):,} tokens"


@rule(
    "failed-run",
    "An error outside of model calls stopped the run.",
    "L6",
    "correct what the error names, and run it again",
    cases={
        "unfinished": Remedy(
            "The process was killed, or the run is still going.",
            "L6",
            ("see what ended the process: its terminal, or the system's log",),
        ),
        "reply": Remedy(
            "A model replied, and not with what was asked for: cut off, empty, or not of the type.",
            "L6",
            (
                "ask again after a wrong reply: attempts=3, or Retry(3) of the node",
                "for replies that are cut: a higher max_output_tokens, or on_cut",
                "take a model or a server that constrains what it writes by the schema",
            ),
        ),
    },
    explained_by=("failed-calls", "out-of-memory", "out-of-reach"),
)
def failed_run(observed: Observed) -> Observation | None:
    """The run did not come to its end."""
    ended = observed.journal.ended
    if ended is not None and ended.status != "error":
        return None
    if ended is not None:
        failed = [node for node in observed.nodes.values() if node.status == "error"]
        of_reply = any(node.error_class in _OF_REPLIES for node in failed)
        return Observation(
            severity="error",
            case="reply" if of_reply else "",
            seen=f"The run ended with: {ended.error}",
            spans=ids(failed),
        )
    unfinished = (call for call in observed.calls if call.status == "unfinished")
    open_calls = [call for call in unfinished if not observed.journal.resumed_after(call.end_ns)]
    return Observation(
        severity="hint",
        case="unfinished",
        seen="The journal has no end"
        + (f", and {counted(len(open_calls), 'call')} had not ended." if open_calls else "."),
        spans=ids(open_calls),
    )


def _ran_out(call: Call) -> bool:
    return _OUT_OF_MEMORY.search(call.error or "") is not None


def _failed_endpoint(observed: Observed, fallback: events.Fallback) -> str:
    """The endpoint that could not answer: the intended one, or one asked in its place."""
    fallbacks = observed.server(fallback.model).fallback
    # Each is asked when the one before it in the list has failed.
    in_order = (fallback.model, *fallbacks)
    is_known = fallback.to in fallbacks
    return in_order[in_order.index(fallback.to) - 1] if is_known else fallback.model


def _fell_back(observed: Observed) -> Observation | None:
    if not observed.seen[events.Fallback]:
        return None
    hops = observed.seen[events.Fallback]
    model, _ = _commonest(_failed_endpoint(observed, hop) for hop in hops)
    of_model = [hop for hop in hops if _failed_endpoint(observed, hop) == model]
    reasons = [hop.reason for hop in of_model]
    reason, listed = _commonest(reasons)
    failed = [
        call
        for call in observed.calls
        if call.status == "error" and call.model == model and call.error_class in reasons
    ]
    lost_ns = length_ns(failed)
    return Observation(
        model=model,
        case=reason,
        seen=f"{counted(len(of_model), 'call')} to '{model}' went to "
        f"{named(hop.to for hop in of_model)} instead ({listed}), after {observed.said(lost_ns)} "
        "in calls that failed. The replies come from another model, which writes and judges "
        "differently.",
        spans=ids(failed),
        lost_ns=lost_ns,
    )


@rule(
    "out-of-reach",
    _ERRORS[UNREACHED].meaning,
    "L3",
    *_ERRORS[UNREACHED].moves,
    "name an endpoint to ask instead: fallback under [endpoints.{tag}] in harness.toml",
    cases={"replaced": _ERRORS[UNREACHED]},
    explains=("failed", "retry"),
)
def out_of_reach(observed: Observed) -> Observation | None:
    """An endpoint could not be reached several times."""
    failures = out_of_reach_calls(observed)
    if not failures:
        return None
    model = max(failures, key=lambda tag: len(failures[tag]))
    failed, tags = failures[model], [tag for tag in failures if tag != model]
    pauses = [retry.pause for retry in observed.retries if retry.model == model]
    later = (c for c in observed.calls if c.model == model and c.end_ns > failed[-1].end_ns)
    back = next((call for call in later if call.status == "ok"), None)
    hops = observed.seen[events.Fallback]
    replaced = sum(_failed_endpoint(observed, hop) == model for hop in hops)
    since_ns, until_ns, waits = failed[0].start_ns, failed[-1].end_ns, [*failed, *pauses]
    if back is not None:  # it waits until the server is looked for again
        # Until it was sent: its wait before that was for the server to be back.
        until_ns = max(until_ns, (ttft(back) or back).start_ns)
        waits.append(Interval(start_ns=min(back.start_ns, until_ns), end_ns=until_ns))
    return Observation(
        # It came back, or each call was answered elsewhere: then only time was lost.
        severity="warning" if back or replaced >= len(failed) else "error",
        model=model,
        # With a fallback already, the advice to name one would be idle.
        case="replaced" if replaced else "",
        seen=f"'{model}' could not be reached from {said_ns(since_ns - observed.run.start_ns)} "
        "into the run "
        + (f"until {said_ns(until_ns - observed.run.start_ns)}" if back else "to its end")
        + f". {counted(len(failed), 'call')} to it failed, of which {replaced} went to another "
        "endpoint." + (f" The same holds for {named(tags)}." if tags else ""),
        spans=ids(failed),
        lost_ns=length_ns(waits),
    )


def _commonest(reasons: Iterable[str]) -> tuple[str, str]:
    """The most frequent, and all with their numbers, for people."""
    counts = Counter(reasons).most_common()
    return counts[0][0], ", ".join(f"{count} for {reason}" for reason, count in counts)


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
            (
                "say in the prompt what the type accepts, with an example",
                "put into the type's schema what can be put there: an enum, a pattern",
            ),
        )
    },
    explains=("decode", "prefill"),
)
@per_model
def asked_again(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Calls that follow a reply which could not be used."""
    typed = [call for call in calls if call.structured]
    again = [call for call in typed if call.asks_again]
    lost_ns = length_ns(again)
    if not again or not observed.matters(lost_ns):
        return None
    loose = sum(call.schema in {"advisory", "ignored"} for call in typed)
    enforced = sum(call.schema == "enforced" for call in again)
    return Observation(
        case="enforced" if 2 * enforced > len(again) else "",
        seen=f"{len(again)} of {counted(len(typed), 'call')} to '{model}' for a typed reply asked "
        f"again after one that could not be used ({observed.said(lost_ns)})"
        + (f"; the server did not enforce the schema of {loose}." if loose else "."),
        spans=ids(again),
        lost_ns=lost_ns,
    )


@rule(
    "filled-context",
    "Prompt and reply together filled the model's context: the ends of these replies are missing.",
    "L6",
    "shorten the prompts, or ask for less in one call",
    Aim.LONGER_CONTEXT,
)
@per_model
def filled_context(_observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Replies were cut because the context was full; a set max_output_tokens may intend that."""
    cut = [call for call in calls if call.was_cut and not reached_own_limit(call)]
    if not cut:
        return None
    return Observation(
        severity="warning" if 2 * len(cut) > len(calls) else "hint",
        seen=f"{len(cut)} of {counted(len(calls), 'reply', 'replies')} by '{model}' were cut off "
        "because the model's context was full.",
        spans=ids(cut),
        wanted=(aim := _context_for(cut)),
        expected=Expected("cut replies", len(cut), 0, "calls") if aim else None,
    )


def reached_own_limit(call: Call) -> bool:
    """Whether a reply that was cut is as long as its call allows, as far as that is known."""
    limit, wrote = call.max_output_tokens, call.output_tokens
    return limit is not None and (wrote is None or wrote >= limit)


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
            (
                "raise the node's Timeout(…)",
                "ask for less in one call: a lower max_output_tokens, a shorter prompt",
            ),
        )
    },
    explains=("node retry",),
)
def node_retries(observed: Observed) -> Observation | None:
    """Attempts of nodes that failed and were repeated, with the pauses; or that a timeout ended."""
    pauses = [retry for retry in observed.seen[events.RetryEvent] if retry.node is not None]
    again = {node.caption for node in observed.nodes.values() if node.attempt}
    lost = [
        node
        for node in observed.nodes.values()
        if node.error_class == NodeTimedOut.__name__
        or (node.status == "error" and node.caption in again)
    ]
    lost_ns = length_ns([*(retry.pause for retry in pauses), *lost])
    if not lost or not observed.matters(lost_ns):
        return None
    reasons = Counter(node.error_class for node in lost)
    return Observation(
        case="timeout" if NodeTimedOut.__name__ in reasons else "",
        seen=f"{counted(len(lost), 'attempt')} at {named(node.caption for node in lost)} failed "
        f"({', '.join(f'{count} with {name}' for name, count in reasons.most_common())}). The "
        f"attempts and {said_ns(length_ns(retry.pause for retry in pauses))} of pauses took "
        f"{observed.said(lost_ns)}.",
        spans=ids(lost),
        lost_ns=lost_ns,
    )
