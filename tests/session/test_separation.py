"""That no model judges itself, nor its relatives: as settings, files, servers and replies tell."""

from __future__ import annotations

import asyncio
import struct
from itertools import repeat

import pytest
from loopback import DONE, Loopback, Reply, chunk, usage
from session_runs import BAD, GOOD, SOURCE, codes, pipeline_of, refused, settings_of

from harness import Run, Settings
from harness.errors import SameFamily, SameModel
from harness.inference import ChatRequest, Completion, Endpoint, Message, ModelMetadata
from harness.session.roles import Casting, cast_roles
from harness.session.separation import ComparedModels, model_reported_by
from harness.trace import Tracer


def served(tag, model_id="", *, port=8000, fallback="", family=None):
    return Endpoint(
        tag=tag,
        url=f"http://127.0.0.1:{port}/v1",
        model_id=model_id or tag,
        fallback=tuple(fallback.split()),
        family=family,
    )


def compared(*endpoints, same_family="refuse", **paths):
    """Endpoints, some of whose servers say they loaded these."""
    models = ComparedModels({one.tag: one for one in endpoints}, same_family=same_family)
    models.use_reports({tag: ModelMetadata(path=path) for tag, path in paths.items()})
    return models


def kin(producer, evaluator, **said):
    """What two models at servers of their own are to each other."""
    both = compared(served("p", producer, port=1), served("e", evaluator, port=2), **said)
    return both.refuse_kin("p", "e")


# --- what is written down -----------------------------------------------------------------------

SAME = {
    "one name": ("qwen2.5:7b", "qwen2.5:7b"),
    "another quantization": ("qwen2.5:7b-instruct-q4_K_M", "Qwen/Qwen2.5-7B-Instruct-AWQ"),
}


@pytest.mark.parametrize(("producer", "evaluator"), SAME.values(), ids=SAME)
def test_one_model_under_two_tags_may_not_judge_itself_whatever_is_allowed(producer, evaluator):
    with pytest.raises(SameModel, match=r"producer 'p' .* and evaluator 'e'"):
        kin(producer, evaluator, same_family="allow")


NAMELESS = {
    "one server, a name that says nothing": (served("p", "default"), served("e", "default")),
    "scripted": (Endpoint(tag="p", backend="scripted"),),
}


@pytest.mark.parametrize("endpoints", NAMELESS.values(), ids=NAMELESS)
def test_one_endpoint_may_not_hold_both_roles(endpoints):
    with pytest.raises(SameModel):
        compared(*endpoints).refuse_kin("p", endpoints[-1].tag)


def test_relatives_are_refused_unless_that_is_allowed():
    with pytest.raises(SameFamily, match=r"family \(qwen\).*same_family = \"allow\""):
        kin("qwen2.5:7b", "DeepSeek-R1-Distill-Qwen-14B")
    assert kin("qwen2.5:7b", "qwen3:8b", same_family="allow").relation == "family"
    kinship = kin("qwen", "llama")
    assert (kinship.relation, kinship.producer, kinship.evaluator) == ("different", ("p",), ("e",))


def gguf(path, **texts):
    """A GGUF file without tensors, whose `general.` keys say this."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(texts))
    for name, value in texts.items():
        key = f"general.{name}".encode()
        data += struct.pack("<Q", len(key)) + key
        if isinstance(value, int):
            data += struct.pack("<II", 4, value)
        else:
            data += struct.pack("<IQ", 8, len(value.encode())) + value.encode()
    path.write_bytes(data)
    return Endpoint(tag=path.stem, path=path)


def test_a_file_is_known_by_its_header(tmp_path):
    said = {"architecture": "qwen2", "name": "Qwen2.5 7B Instruct", "file_type": 15}
    models = compared(gguf(tmp_path / "file.gguf", **said), served("server", "qwen2.5:7b"))
    identity = models.identity("file")
    assert (identity.weights, identity.family) == ("qwen-2.5-7b-instruct", "qwen")
    assert (identity.quantization, identity.source) == ("Q4_K_M", "file header")
    with pytest.raises(SameModel):
        models.refuse_kin("server", "file")
    unknown = gguf(tmp_path / "odd.gguf", architecture="llama", file_type=1024)
    assert compared(unknown).identity("odd").quantization is None


def test_two_copies_of_one_file_are_one_model(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF" + bytes(3000))
    copies = [Endpoint(tag=tag, path=tmp_path / f"{tag}.gguf") for tag in "ab"]
    with pytest.raises(SameModel, match=r"a\.gguf"):
        compared(*copies).refuse_kin("a", "b")


# --- the word of servers ---------------------------------------------------------------------

OWN = "our-writer", "our-judge"
BOTH = "as their servers say"
TOLD = {
    "made up names over one file": (OWN, "/ann/own.gguf", "/srv/own.gguf", SameModel, BOTH),
    "a name and a word": (
        ("gpt-4", "qwen2.5:7b"),
        "Qwen/Qwen2.5-7B-Instruct",
        None,
        SameModel,
        "as the producer's server says",
    ),
    "one alias for two models": (
        ("gpt-4", "gpt-4"), "Qwen/Qwen3-8B", "/m/Llama-3.1-8B", None, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("names", "p", "e", "error", "said"), TOLD.values(), ids=TOLD)
def test_a_servers_word_goes_before_a_name_and_it_is_said_whose_it_is(names, p, e, error, said):
    words = {tag: path for tag, path in (("p", p), ("e", e)) if path}
    if error is None:
        assert kin(*names, **words).relation == "different"
        return
    with pytest.raises(error, match=said) as caught:
        kin(*names, **words)
    if error is SameModel and said is BOTH:
        assert "(our-writer at http://127.0.0.1:1/v1, serving own.gguf)" in str(caught.value)


def test_a_server_is_asked_for_its_model_with_the_headers_that_calls_carry():
    async def sent():
        async with Loopback(repeat(Reply(steps=(b"{}",)))) as server:
            headers = {"x-api-key": "${GATEWAY_KEY}"}
            endpoint = Endpoint(tag="e", url=server.url, backend="vllm", headers=headers)
            await model_reported_by(endpoint, {"GATEWAY_KEY": "key-of-mine"})
            return {asked.headers.get("x-api-key") for asked in server.requests}

    assert asyncio.run(sent()) == {"key-of-mine"}


# --- fallbacks -------------------------------------------------------------------------------

JOINED = {
    "both fall back on one model": (
        (
            served("p", "qwen2.5:7b", fallback="x y"),
            served("x", "mistral:7b"),
            served("y", "gemma3:4b"),
            served("e", "llama3.1:8b", fallback="z"),
            served("z", "google/gemma-3-4b-it", port=2),
        ),
        SameModel,
        r"p -> y\).*e -> z",
    ),
    "the evaluator falls back on a relative": (
        (
            served("p", "qwen2.5:7b"),
            served("e", "llama3.1:8b", fallback="z"),
            served("z", "qwen3:8b"),
        ),
        SameFamily,
        "e -> z",
    ),
}


@pytest.mark.parametrize(("endpoints", "error", "chain"), JOINED.values(), ids=JOINED)
def test_no_fallback_may_join_the_two(endpoints, error, chain):
    with pytest.raises(error, match=chain):
        compared(*endpoints).refuse_kin("p", "e")


def test_the_closest_of_all_that_can_be_reached_is_what_the_two_are_to_each_other():
    models = compared(
        served("p", "qwen2.5:7b", fallback="x y"),
        served("x", "our-writer"),
        served("y", "llama3.2:3b"),
        served("e", "llama3.1:8b"),
        served("other"),
        same_family="allow",
    )
    kinship = models.refuse_kin("p", "e")
    assert (kinship.relation, kinship.producer) == ("family", ("p", "y"))
    assert [one.tag for one in models.reachable("p", "e")] == ["p", "x", "y", "e"]


# --- warnings --------------------------------------------------------------------------------

UNKNOWN, LOW = "separation.family-unknown", "separation.evaluator-low-bit"
LLAMA, FEW = served("e", "llama3.1:8b"), "llama3.1:8b-instruct-q4_K_M"
AWQ = served("z", "TheBloke/Mistral-7B-Instruct-v0.2-AWQ")
SCRIPTED = [Endpoint(tag=tag, backend="scripted") for tag in ("p", "e")]
WARNED = {
    "a family that nothing tells": ([served("p", "our-writer"), LLAMA], UNKNOWN, "'p' is unknown"),
    "a family that is written down": ([served("p", "our", family="ours"), LLAMA], None, ""),
    "a judge of few bits": ([served("p", "qwen2.5:7b-q8_0"), served("e", FEW)], LOW, "Q4_K_M"),
    "a judge's fallback of few bits": (
        [served("p", "qwen2.5:7b"), served("e", "llama3.1:8b", fallback="z"), AWQ], LOW, "'z'",
    ),
    "scripted backends": (SCRIPTED, None, ""),
}  # fmt: skip


@pytest.mark.parametrize(("endpoints", "code", "fact"), WARNED.values(), ids=WARNED)
def test_what_is_to_be_kept_in_mind_about_scores(endpoints, code, fact):
    models = compared(*endpoints)
    found = [*models.warnings(models.kinship("p", "e")), *models.doubts("e")]
    assert codes(found) == ([code] if code else [])
    assert all(fact in one.message for one in found)


# --- the names that replies bear ----------------------------------------------------------------


class Asked:
    """Producer `p` and evaluators, whose servers answer by whatever names they are told to."""

    def __init__(self, endpoints=None, *, evaluators=("e",), begun=True, **tables):
        endpoints = endpoints or [
            served(tag, f"our-{tag}", port=port) for port, tag in enumerate(["p", *evaluators])
        ]
        evaluator = evaluators[0] if len(evaluators) == 1 else evaluators
        roles = {"producer": "p", "evaluator": evaluator}
        settings = Settings.model_validate({"roles": roles, **tables})
        models = compared(*endpoints, same_family=settings.separation.same_family)
        roles = cast_roles(models.endpoints, settings)
        self.warnings = []
        of_run = {"settings": settings, "task": "t", "environment": {}, "tracer": Tracer()}
        self.casting = Casting(roles=roles, models=models, **of_run, warn=self.warnings.append)
        self.casting.choose_evaluators()
        if begun:
            self.casting.separate()
        self.warnings.clear()
        self.calls = 0

    def call(self, tag, model_id, *, role=None, endpoint=None):
        """One call in a role, to a server that answers by this name."""
        reply = Completion(
            text="x",
            reasoning="",
            finish_reason="stop",
            usage=None,
            sent_ns=0,
            first_token_ns=None,
            phases=(),
            model_id=model_id,
            endpoint=endpoint,
        )
        role = role or ("producer" if tag == "p" else "evaluator")
        request = ChatRequest(model=tag, role=role, messages=(Message("user", "x"),))
        self.casting.check_replies()
        self.calls += 1
        self.casting.compare_reply(request, reply)

    def call_all(self, tags, names):
        for tag in tags:
            self.call(tag, names[tag])


TURN_OUT = {
    "packing": ("qwen2.5:7b-instruct-q4_K_M", "Qwen2.5-7B-Instruct-Q8_0.gguf", SameModel),
    "a size without a family": ("our-model-8b", "our-model-8b", SameModel),
    "relatives": ("qwen2.5:7b", "qwen3:8b", SameFamily),
}


@pytest.mark.parametrize(("producers", "evaluators", "error"), TURN_OUT.values(), ids=TURN_OUT)
@pytest.mark.parametrize("first", ["p", "e"])
def test_servers_that_turn_out_to_serve_one_model_end_the_run_whoever_is_asked_first(
    producers, evaluators, error, first
):
    asked = Asked()
    names = {"p": producers, "e": evaluators}
    second = "e" if first == "p" else "p"
    asked.call(first, names[first])
    for _ in range(2):  # once found out, no further call is made
        with pytest.raises(error, match=f"'{second}' was answered by '{names[second]}'"):
            asked.call(second, names[second])
    assert asked.calls == 2


def test_what_answered_before_anybody_judged_is_compared_once_somebody_does():
    asked = Asked(begun=False)
    asked.call("p", "Qwen2.5-7B-Instruct-Q4_K_M.gguf")
    asked.casting.separate()
    with pytest.raises(SameModel, match="'e' was answered by"):
        asked.call("e", "qwen2.5:7b")


def test_an_answer_is_held_against_what_the_other_role_asks_for_too():
    asked = Asked([served("p", "llama3.1:8b"), served("e", "qwen2.5:7b", port=2)])
    for tag, name in (("p", "llama3.1:8b"), ("e", "qwen2.5:7b")) * 2:
        asked.call(tag, name)  # which repeats what it was asked for
    assert asked.casting.separation.relation == "different"
    with pytest.raises(SameModel, match=r"the evaluator's 'qwen2\.5:7b'"):
        asked.call("p", "Qwen2.5-7B-Instruct-Q4_K_M.gguf")


@pytest.mark.parametrize("said", ["default", "our-alias"])
def test_a_name_that_says_nothing_is_an_identity_at_one_address_alone(said):
    apart = Asked()
    apart.call_all("pe", {"p": said, "e": said})
    assert apart.calls == 2
    together = Asked([served("p", "our-p"), served("e", "our-e")])
    together.call("p", said)
    with pytest.raises(SameModel):
        together.call("e", said)


PANEL = {"evaluators": ("a", "b"), "evaluation": {"panel": "mean"}}


@pytest.mark.parametrize("order", ["pab", "abp"])
def test_every_evaluator_of_a_panel_is_held_apart_from_the_producer(order):
    names = {"p": "qwen2.5:7b", "a": "llama3.1:8b", "b": "Qwen2.5-7B-Instruct"}
    panel = Asked(**PANEL)
    with pytest.raises(SameModel, match=r"'b' was answered|the evaluator's 'Qwen2\.5-7B"):
        panel.call_all(order, names)


def test_a_relative_that_is_allowed_is_stamped_on_that_evaluator_alone():
    names = {"p": "qwen2.5:7b", "a": "llama3.1:8b", "b": "qwen3:8b"}
    panel = Asked(**PANEL, separation={"same_family": "allow"})
    panel.call_all("pab" * 2, names)
    assert panel.casting.separation.evaluators == {"a": "unknown", "b": "family"}
    assert panel.casting.separation.relation == "family"
    assert codes(panel.warnings) == ["separation.family-served"]


def test_a_fallbacks_reply_is_not_taken_for_the_model_that_was_asked():
    # What is written down of the producer goes for it alone.
    producer = served("p", "llama-3.1-8b", family="house", fallback="f")
    asked = Asked([producer, served("f", "spare", port=2), served("e", "llama-3.1-70b", port=3)])
    with pytest.raises(SameFamily, match=r"'f' was answered by .* family \(llama\)"):
        asked.call("p", "llama-3.1-8b", endpoint="f")


# --- in a run --------------------------------------------------------------------------------


def replying(model, text):
    """A stream of llama-server, whose chunks bear the name of the model that it has."""
    said = {"role": "assistant", "content": text}
    return Reply(
        steps=(
            chunk(model=model, choices=[{"index": 0, "delta": said, "finish_reason": None}]),
            chunk(model=model, choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
            chunk(model=model, choices=[], usage=usage()),
            DONE,
        )
    )


@pytest.mark.parametrize(
    ("evaluators", "code"),
    [("qwen2.5-7b-instruct-q8_0.gguf", "roles.same-model"), ("Llama-3.1-8B-Q8_0.gguf", None)],
)
def test_a_loop_does_not_take_one_model_for_a_failed_round(tmp_path, evaluators, code):
    async def text(run: Run) -> str:
        # The draft is judged before the producer is first asked, for a revision.
        return (await run.wiggum("t", rubric="answer", sources=[SOURCE], draft=BAD)).text

    verdict = '{"relevance": {"reason": "Nothing is missing.", "score": 9}}'

    async def main():
        writing = repeat(replying("Qwen2.5-7B-Instruct-Q4_K_M.gguf", GOOD))
        judging = repeat(replying(evaluators, verdict))
        async with Loopback(writing) as writer, Loopback(judging) as judge:
            endpoints = {
                tag: Endpoint(tag=tag, url=server.url, backend="llamacpp", model_id=f"our-{tag}")
                for tag, server in (("p", writer), ("e", judge))
            }
            settings = settings_of(
                tmp_path,
                endpoints=endpoints,
                roles={"producer": "p", "evaluator": "e"},
                # A script has no answers for whoever asks for counters.
                trace={"sample_ms": 0},
            )
            return await pipeline_of(text).run_async({}, settings=settings)

    if code:
        with refused(code):
            asyncio.run(main())
    else:
        result = asyncio.run(main())
        assert (result.result, result.separation.relation) == (GOOD, "unknown")
