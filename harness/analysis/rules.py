"""Every rule of a diagnosis in one table: its function, its meaning, and its remedies.

A new diagnosis is a function in a `rules_…` file, a row here, and a planted run in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.analysis.facts import Observed, Server
from harness.analysis.finding import Expected, Finding, Found, Layer
from harness.analysis.rules_client import (
    client_lag,
    idle_device,
    max_concurrency,
    max_parallel,
    serial_client,
    slow_code,
)
from harness.analysis.rules_decoding import (
    bandwidth_bound,
    compute_bound,
    kv_pressure,
    preemptions,
    rejected_drafts,
    slow_decode,
    stalled_replies,
)
from harness.analysis.rules_failures import (
    dropped_fields,
    failed_calls,
    failed_run,
    fallbacks,
    filled_context,
    out_of_memory_at_start,
    out_of_memory_later,
    out_of_reach,
    retries,
    schema_not_enforced,
    timed_out_attempts,
)
from harness.analysis.rules_prompts import (
    drifting_prefix,
    prefill_bound,
    resent_history,
    uncached_prefix,
)
from harness.analysis.rules_waiting import (
    behind_prefill,
    budget_wait,
    cold_start,
    queueing,
    slow_first_call,
    straggler,
    swap_thrash,
)
from harness.inference.providers import Aim


class Advice(NamedTuple):
    """The meaning of a finding, and its remedies."""

    meaning: str
    layer: Layer
    moves: tuple[str | Aim, ...]
    """Most likely to help first; an aim stands for what the server's provider offers for it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, with the meaning and remedies of its findings."""

    look: Callable[[Observed], Found | None]
    meaning: str
    layer: Layer
    moves: tuple[str | Aim, ...]
    """As in `Advice`."""
    cases: Mapping[str, Advice] = field(default_factory=dict)
    """Other advice, by the rule's `case`."""
    explained_by: Collection[str] = ()
    """Rules that name the cause of this: next to one of theirs on the same model, or on the whole
    run, this finding is left out."""
    slows_replies: bool = True
    """Whether this adds to the time to the first token, or between tokens."""

    def finding(self, code: str, observed: Observed) -> Finding | None:
        """The findings of the rule with this code in a run."""
        found = self.look(observed)
        if found is None:
            return None
        usual = Advice(self.meaning, self.layer, self.moves)
        advice = self.cases.get(found.case, usual)
        server = observed.server(found.server or found.model or "")
        move, expected = _moves(found, advice.moves, server)
        return Finding(
            rule=code,
            severity=found.severity,
            model=found.model,
            seen=found.seen,
            evidence=found.evidence,
            meaning=advice.meaning,
            layer=advice.layer,
            move=move,
            lost_ns=None if found.lost_ns is None else round(found.lost_ns),
            expected=expected,
        )


def _moves(
    found: Found, moves: tuple[str | Aim, ...], server: Server
) -> tuple[tuple[str, ...], Expected | None]:
    """What to change, and what the change that the rule has computed is expected to do."""
    aim, how_far = found.wanted or (None, "")
    changes, computed = list(found.first), None if found.wanted else 0
    for move in moves:
        offered = [*server.remedies(move)] if isinstance(move, Aim) else [server.filled(move)]
        if move == aim and offered:
            computed = len(changes)
            offered[0] += f", for {how_far}" if how_far else ""
        changes += offered
    if computed is None or not changes or found.expected is None:
        return tuple(changes), None
    changes[computed] += f": {found.expected}"
    return tuple(changes), found.expected


_OTHER_ERROR = Advice(
    "The server failed, or the connection to it broke.",
    "L3",
    ("see the server's log for that moment",),
)
_ERRORS: Mapping[str, Advice] = {
    "RateLimited": Advice(
        "The account is at its limit of calls or tokens a minute.",
        "L5",
        ("make fewer calls at once", "have the account's limit raised"),
    ),
    "Overloaded": Advice(
        "The server was loading, or had more calls than it takes.",
        "L4a",
        ("begin when the server has loaded", "make fewer calls at once", Aim.ANSWER_MORE_AT_ONCE),
    ),
    "ContextOverflow": Advice(
        "Prompt and reply together are longer than the model's context.",
        "L6",
        ("shorten the prompt, or lower max_output_tokens", Aim.LONGER_CONTEXT),
    ),
    "CallTimeout": Advice(
        "The reply took longer than the endpoint's timeout_s.",
        "L3",
        ("lower max_output_tokens, or raise timeout_s under [endpoints.{tag}]",),
    ),
    "EndpointUnreachable": Advice(
        "Nothing answered: the server was not started, has gone, or is somewhere else.",
        "L3",
        ("see the server's log for why it ended", "check url under [endpoints.{tag}]"),
    ),
    "AuthenticationFailed": Advice(
        "The server refused the key.", "L5", ("check api_key_env under [endpoints.{tag}]",)
    ),
    "ModelNotFound": Advice(
        "The server has no model of that name.", "L5", ("check model_id under [endpoints.{tag}]",)
    ),
    "ModelFileInvalid": Advice(
        "The model's file is not there, or is no whole GGUF.",
        "L2",
        ("check path under [endpoints.{tag}]",),
    ),
}
"""By the class of the error that ended calls."""

_SHORTER_PROMPTS = (
    "shorten the prompts: fewer or shorter passages, only sources that bear on the task"
)
_SAME_PART_FIRST = "put what is the same in every prompt first, so that a prefix cache serves it"
_SHORTER_REPLIES = "ask for shorter replies: a lower max_output_tokens"
_SMALLER_MODEL = "use smaller weights, or a device with more memory bandwidth"
_LESS_TO_COMPUTE = "use a smaller model, or a processor or GPU that computes more"
_SMALLER_NEIGHBOR = "use smaller weights for one of them"
_FEWER_CALLS = "make fewer calls at once"
_MAPPED_NODE = "make it a mapped node, which runs once per item: @pipeline.node(each={{...}})"
_TOGETHER = "make the calls of one function together: asyncio.gather, or a task group"
_QUEUE_HERE = "make fewer calls at once: they would wait here instead, and other work could go on"

RULES: Mapping[str, Rule] = {
    "out-of-memory-at-start": Rule(
        out_of_memory_at_start,
        "Out of memory at start: weights, KV cache for the whole context, and buffers are "
        "allocated before the first call, and there was no room for them.",
        "L3",
        (Aim.FIT_AT_START, "use smaller weights"),
        slows_replies=False,
    ),
    "out-of-memory-later": Rule(
        out_of_memory_later,
        "Out of memory later: the KV cache grows from call to call, with the length of prompts "
        "and the number of calls at once.",
        "L3",
        (
            Aim.FIT_LATER,
            "cap what a call can take: fewer passages, a lower max_output_tokens",
        ),
        slows_replies=False,
    ),
    "out-of-reach": Rule(
        out_of_reach,
        _ERRORS["EndpointUnreachable"].meaning,
        "L3",
        (
            *_ERRORS["EndpointUnreachable"].moves,
            "name an endpoint to ask instead: fallback under [endpoints.{tag}] in harness.toml",
        ),
        cases={"replaced": _ERRORS["EndpointUnreachable"]},
        slows_replies=False,
    ),
    "failed-calls": Rule(failed_calls, *_OTHER_ERROR, cases=_ERRORS, slows_replies=False),
    "failed-run": Rule(
        failed_run,
        "An error outside of model calls stopped the run.",
        "L6",
        ("correct what the error names, and run it again",),
        cases={
            "unfinished": Advice(
                "The process was killed, or the run is still going.",
                "L6",
                ("see what ended the process: its terminal, or the system's log",),
            )
        },
        explained_by=frozenset(
            {"failed-calls", "out-of-memory-at-start", "out-of-memory-later", "out-of-reach"}
        ),
        slows_replies=False,
    ),
    "retries": Rule(retries, *_OTHER_ERROR, cases=_ERRORS, slows_replies=False),
    "fallbacks": Rule(
        fallbacks,
        *_OTHER_ERROR,
        cases=_ERRORS,
        explained_by=["out-of-reach"],
        slows_replies=False,
    ),
    "schema-not-enforced": Rule(
        schema_not_enforced,
        "Nothing enforces the schema: each prompt describes it at its end, and the model may "
        "still reply with something else.",
        "L3",
        (
            Aim.ENFORCE_SCHEMAS,
            "take a server that constrains what it writes by the schema",
            'structured = "enforced" under [endpoints.{tag}], if only the test call went wrong',
        ),
        slows_replies=False,
    ),
    "filled-context": Rule(
        filled_context,
        "Prompt and reply together filled the model's context: the ends of these replies are "
        "missing.",
        "L6",
        ("shorten the prompts, or ask for less in one call", Aim.LONGER_CONTEXT),
        slows_replies=False,
    ),
    "dropped-fields": Rule(
        dropped_fields,
        "The model used its own defaults in their place; if they affect its text, the run cannot "
        "be repeated exactly.",
        "L5",
        ("take a model or a server that accepts them",),
        slows_replies=False,
    ),
    "cold-start": Rule(
        cold_start,
        "A cold start: the weights were not in memory when they were first needed.",
        "L3",
        (Aim.KEEP_LOADED, "do more in one run: a model is loaded once, at its first call"),
        slows_replies=False,
    ),
    "slow-first-call": Rule(
        slow_first_call,
        "A cold start in the server: it loaded or prepared the model at the first call.",
        "L3",
        (Aim.KEEP_LOADED, "send a short call ahead, while the run has other things to do"),
        explained_by=["out-of-reach", "retries"],
    ),
    "straggler": Rule(
        straggler,
        "A straggler: a node that needs all items, or the run's end, waits for the slowest one.",
        "L6",
        (
            "divide what is longer than the others into items of its own",
            "begin with the longest items",
            "limit what one item may take: a lower max_output_tokens, or Timeout(…)",
        ),
        explained_by=["client-lag", "retries"],
        slows_replies=False,
    ),
    "swap-thrash": Rule(
        swap_thrash,
        "Swap thrash: the models do not fit into memory together, and calls to them alternate, "
        "so that a model evicted for one call is needed again for the next.",
        "L4a",
        (Aim.LET_BOTH_STAY, _SMALLER_NEIGHBOR),
        slows_replies=False,
    ),
    "budget-wait": Rule(
        budget_wait,
        "The memory budget: a model in use is never evicted, so a call to a model that does not "
        "fit beside it waits.",
        "L4a",
        (Aim.LET_BOTH_STAY, _SMALLER_NEIGHBOR),
        explained_by=["swap-thrash"],
        slows_replies=False,
    ),
    "queueing": Rule(
        queueing,
        "Queueing: more calls came at once than the server has places.",
        "L4a",
        (Aim.ANSWER_MORE_AT_ONCE, Aim.BOUND_QUEUE, _QUEUE_HERE),
        cases={
            "KV cache full": Advice(
                "Queueing: more calls came at once than the KV cache has room for.",
                "L4a",
                (Aim.MORE_KV_ROOM, Aim.BOUND_QUEUE, _QUEUE_HERE),
            ),
            "at its limit": Advice(
                "Queueing at a model that computes as much as the processor can: with more places, "
                "each call would be answered more slowly.",
                "L0",
                (_LESS_TO_COMPUTE, _SHORTER_PROMPTS, _SAME_PART_FIRST, _SHORTER_REPLIES),
            ),
            "places gain nothing": Advice(
                "Queueing: more calls came at once than the server has places. At the pace at "
                "which it reads prompts, each call would wait as long with more places.",
                "L4b",
                (_SHORTER_PROMPTS, _SAME_PART_FIRST, _SHORTER_REPLIES, _LESS_TO_COMPUTE),
            ),
        },
    ),
    "behind-prefill": Rule(
        behind_prefill,
        "Waiting behind other prompts: the server reads a fixed number of tokens per batch, and a "
        "long prompt fills batch after batch. More places would not help. What a smaller batch "
        "gains cannot be computed: the server does not say how many tokens it reads at a time.",
        "L4b",
        (
            _SHORTER_PROMPTS,
            _SAME_PART_FIRST,
            Aim.SPREAD_PREFILL,
            "make fewer calls with long prompts at once",
        ),
    ),
    "prefill-bound": Rule(
        prefill_bound,
        "Prefill bound: the time goes into reading long prompts, not into waiting or writing.",
        "L4b",
        (_SHORTER_PROMPTS, _SAME_PART_FIRST, Aim.READ_PROMPTS_FASTER),
        explained_by=["drifting-prefix", "uncached-prefix", "resent-history"],
    ),
    "drifting-prefix": Rule(
        drifting_prefix,
        "The prefix drifts: a cache serves a prompt up to its first difference from an earlier "
        "one, and here something varies near the beginning.",
        "L6",
        (
            "put what varies (a time, a number, a name, a question) after what stays the same",
            "keep the system prompt and the order of sources fixed from call to call",
        ),
        cases={
            "no texts": Advice(
                "Perhaps the prefix drifts: if the prompts are mostly the same, something varies "
                "near the beginning. Their texts were not recorded, so this is a guess.",
                "L6",
                (
                    'record texts, and diagnose again: [trace] content = "full" in harness.toml',
                    "if the prompts are mostly the same, put what varies last",
                ),
            )
        },
    ),
    "uncached-prefix": Rule(
        uncached_prefix,
        "The server kept nothing: its prefix cache is off, too small, or was used by other "
        "calls in between.",
        "L4b",
        (Aim.KEEP_PREFIXES, "see whether the server has a prefix cache, and whether it is on"),
        explained_by=["resent-history"],
    ),
    "resent-history": Rule(
        resent_history,
        "A stateless client: each turn costs all the turns before it, unless the server still "
        "has them.",
        "L6",
        (
            "keep the history word for word and in order, so that a prefix cache serves it",
            Aim.KEEP_PREFIXES,
            "compress what lies further back, and send only what the turn needs",
        ),
        explained_by=["drifting-prefix"],
    ),
    "kv-pressure": Rule(
        kv_pressure,
        "KV pressure: every step reads the cache of all replies under way, and there is hardly "
        "room for another.",
        "L4b",
        (Aim.MORE_KV_ROOM, _FEWER_CALLS),
    ),
    "preemptions": Rule(
        preemptions,
        "The KV cache was full while replies were growing in it.",
        "L4b",
        (Aim.MORE_KV_ROOM, _FEWER_CALLS),
    ),
    "stalled-replies": Rule(
        stalled_replies,
        "The server stops in the middle of replies: it makes room in its memory, or does something "
        "else.",
        "L4b",
        (Aim.MORE_KV_ROOM, _FEWER_CALLS, "see the server's log for that moment"),
        explained_by=["preemptions", "kv-pressure", "client-lag", "behind-prefill"],
    ),
    "bandwidth-bound": Rule(
        bandwidth_bound,
        "Memory bandwidth: each token reads all the weights once, and memory delivers them no "
        "faster, unless other programs used the machine at the same time.",
        "L0",
        (
            Aim.WRITE_FASTER,
            _SMALLER_MODEL,
            "decode several calls at once: one reading of the weights then serves all of them",
        ),
    ),
    "compute-bound": Rule(
        compute_bound,
        "Compute: the processor is fully used for each token, and memory could deliver more.",
        "L0",
        (
            Aim.COMPUTE_FASTER,
            _LESS_TO_COMPUTE,
            "several calls at once gain little here: they share what is computed",
        ),
    ),
    "slow-decode": Rule(
        slow_decode,
        "Slow decoding: the machine cannot compute or read memory fast enough for that many "
        "replies at once, or its threads get in each other's way.",
        "L3",
        (Aim.COMPUTE_FASTER, Aim.WRITE_FASTER, _SMALLER_MODEL),
        explained_by=["bandwidth-bound", "compute-bound", "kv-pressure", "preemptions"],
    ),
    "rejected-drafts": Rule(
        rejected_drafts,
        "Speculative decoding that does not pay: what the draft proposes is computed and "
        "checked, and then thrown away. It may even slow the replies down: by how much cannot be "
        "computed, since the server does not say what a draft costs.",
        "L3",
        (
            Aim.DRAFT_BETTER,
            "compare with drafting turned off: above a few calls at once it seldom pays",
            "lower the temperature: what is sampled freely is seldom what the draft expects",
        ),
    ),
    "max-concurrency": Rule(
        max_concurrency,
        "The endpoint's own limit: max_parallel holds back calls that its server could have begun.",
        "L6",
        ("leave it out for a server of your own: one that batches has its own queue",),
        slows_replies=False,
    ),
    "max-parallel": Rule(
        max_parallel,
        "The pipeline's own limit: max_parallel calls of nodes run at once, and the others wait, "
        "although the models could take more.",
        "L6",
        ("limit what a server gets by max_parallel under [endpoints.…] in its place",),
        cases={
            "no models": Advice(
                "The pipeline's own limit: calls of nodes that call no model held its places.",
                "L6",
                (
                    "make nodes that call no model faster, or fewer: each holds a place meanwhile",
                    "do such work for several items in one call of a node",
                ),
            )
        },
        slows_replies=False,
    ),
    "serial-client": Rule(
        serial_client,
        "A serial client: the server had one call at a time, and a batch of them costs it "
        "little more.",
        "L6",
        (_MAPPED_NODE, _TOGETHER),
        cases={
            "in process": Advice(
                "A serial client: the engine had one call at a time. It shares the processor's "
                "cores among the calls under way, so several at once may be no faster there; a "
                "server that batches them on a GPU would be.",
                "L6",
                (
                    "serve the model from one that batches on a GPU, if there is one",
                    _MAPPED_NODE,
                    _TOGETHER,
                ),
            )
        },
        slows_replies=False,
    ),
    "client-lag": Rule(
        client_lag,
        "A blocked event loop: code that computes, or waits without `await`, stops everything "
        "else in the process. Replies stay unread, and no call is sent.",
        "L6",
        (
            "define the node with def in place of async def: it runs in a thread then",
            "call what takes long with await asyncio.to_thread(…)",
            "what keeps the interpreter's lock (an extension that computes) needs a process",
        ),
        cases={
            "no one place": Advice(
                "The process got too little CPU time, or did much work in small pieces: replies "
                "stayed unread for a while.",
                "L6",
                (
                    "see what else uses the machine's cores, and leave one to this process",
                    _FEWER_CALLS,
                ),
            )
        },
    ),
    "timed-out-attempts": Rule(
        timed_out_attempts,
        "A node's timeout is shorter than its work takes: each attempt starts over.",
        "L6",
        (
            "raise the node's Timeout(…)",
            "ask for less in one call: a lower max_output_tokens, a shorter prompt",
        ),
        slows_replies=False,
    ),
    "slow-code": Rule(
        slow_code,
        "Work beside models: a computation, a file, a tool or a pause in the node itself.",
        "L6",
        (
            "see where: with run.span(…) around its parts, or a profiler (py-spy)",
            "do it while models work: in a node of its own that others need not wait for",
            "make independent parts of it together: asyncio.gather, or a mapped node",
        ),
        explained_by=["client-lag"],
        slows_replies=False,
    ),
    "idle-device": Rule(
        idle_device,
        "Something between the run and the server delays calls, or sends them to a server other "
        "than the one whose counters are read.",
        "L4a",
        (
            "raise the gateway's limit of connections or of calls at once",
            "balance by queue depth rather than in turn",
            "point url under [endpoints.{tag}] at the server itself",
        ),
    ),
}
"""By the stable code that findings bear."""
