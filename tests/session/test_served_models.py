"""What servers say they served, held against what the other role's are known to be."""

from __future__ import annotations

import asyncio
from itertools import repeat
from pathlib import Path

import pytest
from loopback import DONE, Loopback, Reply, chunk, usage

from harness import Pipeline, Run, RunResult, Settings
from harness.errors import NodeFailed, SameFamily, SameModel
from harness.inference import ChatRequest, Completion, Endpoint, Message
from harness.session.casting import Casting
from harness.session.served_models import ServedModels
from harness.session.settings import TraceSettings
from harness.trace import Tracer

GOOD = (
    "A cold start takes 8 to 15 s from disk. Keeping the model loaded between calls removes it, "
    "so the next call begins at once and needs less than 0.2 s."
)
VERDICT = '{"relevance": {"reason": "Nothing is missing.", "score": 9}}'
SOURCE = GOOD + " The server must read the weights from disk."


def completion(model_id: str, *, endpoint: str | None = None) -> Completion:
    return Completion(
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


class Asked:
    """Producer `p` and evaluator `e`, whose servers answer by these names."""

    def __init__(
        self,
        *,
        ports: tuple[int, int] = (1, 2),
        names: tuple[str, str] = ("our-writer", "our-judge"),
        **separation: str,
    ) -> None:
        endpoints = {
            tag: Endpoint(tag=tag, url=f"http://127.0.0.1:{port}/v1", model_id=name)
            for tag, port, name in zip("pe", ports, names, strict=True)
        }
        settings = Settings.model_validate(
            {"roles": {"producer": "p", "evaluator": "e"}, "separation": separation}
        )
        self.casting = Casting(endpoints, settings)
        self.casting.begin(Tracer())
        self.calls = 0
        self._answers: dict[str, str] = {}
        self._served = ServedModels(self._ask, casting=self.casting, tracer=Tracer())

    async def _ask(self, request: ChatRequest) -> Completion:
        self.calls += 1
        return completion(self._answers[request.model])

    def call(self, role: str, model_id: str) -> None:
        """One call in a role, to a server that answers by this name."""
        tag = "e" if role == "evaluator" else "p"
        self._answers[tag] = model_id
        request = ChatRequest(model=tag, role=role, messages=(Message("user", "x"),))
        asyncio.run(self._served.chat(request))


@pytest.mark.parametrize(
    ("producers", "evaluators"),
    [
        pytest.param("qwen2.5:7b-instruct-q4_K_M", "Qwen2.5-7B-Instruct-Q8_0.gguf", id="packing"),
        pytest.param("mistral:latest", "mistral", id="a family without a size"),
        pytest.param("our-model-8b", "our-model-8b", id="a size without a family"),
    ],
)
def test_two_servers_that_turn_out_to_serve_one_model_end_the_run(
    producers: str, evaluators: str
) -> None:
    asked = Asked()
    asked.call("producer", producers)
    with pytest.raises(SameModel, match=f"evaluator 'e' was answered by '{evaluators}'"):
        asked.call("evaluator", evaluators)


def test_it_does_not_matter_who_is_asked_first() -> None:
    asked = Asked()
    asked.call("evaluator", "qwen2.5:7b")
    with pytest.raises(SameModel, match=r"producer 'p' was answered by 'Qwen2\.5-7B-Instruct'"):
        asked.call("producer", "Qwen2.5-7B-Instruct")


def test_an_answer_is_held_against_what_the_other_role_asks_for_too() -> None:
    asked = Asked(names=("llama3.1:8b", "qwen2.5:7b"))
    with pytest.raises(SameModel, match=r"the evaluator's 'qwen2\.5:7b' are the same model"):
        asked.call("producer", "Qwen2.5-7B-Instruct-Q4_K_M.gguf")


@pytest.mark.parametrize(
    "said", ["default", "/models/model.gguf", "gpt-3.5-turbo", "gpt", "our-alias"]
)
def test_a_name_that_says_nothing_is_no_identity_across_two_servers(said: str) -> None:
    asked = Asked()
    asked.call("producer", said)
    asked.call("evaluator", said)
    assert asked.calls == 2


@pytest.mark.parametrize("said", ["default", "our-alias", "model.gguf"])
def test_at_one_address_any_name_is(said: str) -> None:
    asked = Asked(ports=(1, 1))
    asked.call("producer", said)
    with pytest.raises(SameModel):
        asked.call("evaluator", said)


def test_a_server_that_repeats_what_it_was_asked_for_says_nothing_new() -> None:
    asked = Asked(names=("qwen2.5:7b", "llama3.1:8b"))
    for _ in range(2):
        asked.call("producer", "qwen2.5:7b")
        asked.call("evaluator", "llama3.1:8b")
    assert asked.casting.separation is not None
    assert asked.casting.separation.relation == "different"


def test_relatives_that_turn_up_are_refused() -> None:
    asked = Asked()
    asked.call("producer", "qwen2.5:7b")
    with pytest.raises(SameFamily, match=r"of one family \(qwen\)"):
        asked.call("evaluator", "qwen3:8b")


def test_relatives_that_turn_up_where_they_are_allowed_are_stamped() -> None:
    asked = Asked(same_family="allow")
    unknown = list(asked.casting.warnings)
    asked.call("producer", "qwen2.5:7b")
    asked.call("evaluator", "qwen3:8b")
    asked.call("evaluator", "qwen3:8b")
    assert asked.casting.separation is not None
    assert asked.casting.separation.relation == "family"
    (more,) = map(str, asked.casting.warnings[len(unknown) :])
    assert "evaluator 'e' was answered by 'qwen3:8b'" in more


def test_once_found_out_no_further_call_is_made() -> None:
    asked = Asked()
    asked.call("producer", "qwen2.5:7b")
    for _ in range(2):
        with pytest.raises(SameModel):
            asked.call("evaluator", "qwen2.5:7b")
    assert asked.calls == 2


def test_what_answers_in_another_role_is_nobodys_business() -> None:
    asked = Asked()
    asked.call("planner", "qwen2.5:7b")
    asked.call("evaluator", "qwen2.5:7b")
    assert asked.calls == 2


# --- a panel ---------------------------------------------------------------------------------


class Panel:
    """Producer `p` and a panel of `a` and `b`, whose servers answer by these names."""

    def __init__(self, answers: dict[str, str], **separation: str) -> None:
        endpoints = {
            tag: Endpoint(tag=tag, url=f"http://{tag}/v1", model_id=f"our-{tag}") for tag in "pab"
        }
        settings = Settings.model_validate(
            {
                "roles": {"producer": "p", "evaluator": ["a", "b"]},
                "separation": separation,
                "evaluation": {"panel": "mean"},
            }
        )
        self.casting = Casting(endpoints, settings)
        self.casting.choose_evaluators(Tracer(), task="t", run_id="r")
        self.casting.begin(Tracer())
        self._answers = answers
        self._served = ServedModels(self._ask, casting=self.casting, tracer=Tracer())

    async def _ask(self, request: ChatRequest) -> Completion:
        return completion(self._answers[request.model])

    def call(self, *tags: str) -> None:
        for tag in tags:
            role = "producer" if tag == "p" else "evaluator"
            request = ChatRequest(model=tag, role=role, messages=(Message("user", "x"),))
            asyncio.run(self._served.chat(request))


@pytest.mark.parametrize("order", ["pab", "abp", "bpa"])
def test_every_evaluator_of_a_panel_is_held_apart_from_the_producer(order: str) -> None:
    panel = Panel({"p": "qwen2.5:7b", "a": "llama3.1:8b", "b": "Qwen2.5-7B-Instruct"})
    with pytest.raises(SameModel, match=r"'b' was answered|the evaluator's 'Qwen2\.5-7B"):
        panel.call(*order)


def test_two_of_a_panel_may_be_relatives_of_each_other() -> None:
    panel = Panel({"p": "gemma3:4b", "a": "qwen2.5:7b", "b": "qwen3:8b"})
    panel.call("a", "b", "p")
    assert panel.casting.separation is not None
    assert panel.casting.separation.evaluators == {"a": "unknown", "b": "unknown"}


@pytest.mark.parametrize("order", ["pab", "abp"])
def test_a_relative_that_is_allowed_is_stamped_on_that_evaluator_alone(order: str) -> None:
    panel = Panel({"p": "qwen2.5:7b", "a": "llama3.1:8b", "b": "qwen3:8b"}, same_family="allow")
    panel.call(*order)
    assert panel.casting.separation is not None
    assert panel.casting.separation.evaluators == {"a": "unknown", "b": "family"}
    assert panel.casting.separation.relation == "family"


# --- a fallback's reply ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("Meta-Llama-3.1-8B-Instruct", id="a name that nobody asked for"),
        pytest.param("llama-3.1-8b", id="the name that was asked of another"),
    ],
)
def test_a_fallbacks_reply_is_not_taken_for_the_model_that_was_asked(said: str) -> None:
    endpoints = {
        tag: Endpoint.model_validate({"tag": tag, "url": f"http://{tag}/v1", **table})
        for tag, table in {
            # What is written down of it goes for it alone.
            "p": {"model_id": "llama-3.1-8b", "family": "house", "fallback": ["f"]},
            "f": {"model_id": "spare"},
            "e": {"model_id": "llama-3.1-70b"},
        }.items()
    }
    settings = Settings.model_validate({"roles": {"producer": "p", "evaluator": "e"}})
    casting = Casting(endpoints, settings)
    casting.begin(Tracer())

    async def ask(_: ChatRequest) -> Completion:
        return completion(said, endpoint="f")

    served = ServedModels(ask, casting=casting, tracer=Tracer())
    request = ChatRequest(model="p", role="producer", messages=(Message("user", "x"),))
    with pytest.raises(SameFamily, match=r"producer 'f' was answered by .* one family \(llama\)"):
        asyncio.run(served.chat(request))


# --- in a run --------------------------------------------------------------------------------


def replying(model: str, text: str) -> Reply:
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


def revised(tmp_path: Path, *, producers: str, evaluators: str) -> RunResult:
    """A loop over a draft that is given, on two servers that have these models."""
    writing = repeat(replying(producers, GOOD))
    judging = repeat(replying(evaluators, VERDICT))
    pipeline = Pipeline("revising")

    @pipeline.node
    async def text(run: Run) -> str:
        draft = "It takes 900 years."
        return (
            await run.wiggum("cold starts?", rubric="answer", sources=[SOURCE], draft=draft)
        ).text

    async def run() -> RunResult:
        async with Loopback(writing) as writer, Loopback(judging) as judge:
            settings = Settings(
                traces=tmp_path / "traces",
                endpoints={
                    "p": Endpoint(tag="p", url=writer.url, backend="llamacpp", model_id="writer"),
                    "e": Endpoint(tag="e", url=judge.url, backend="llamacpp", model_id="judge"),
                },
                roles={"producer": "p", "evaluator": "e"},
                # A script has no answers for whoever asks for counters.
                trace=TraceSettings(sample_ms=0),
            )
            return await pipeline.run_async({}, settings=settings)

    return asyncio.run(run())


def test_a_loop_does_not_take_one_model_for_a_failed_round(tmp_path: Path) -> None:
    # The given draft is judged before the producer is first asked, for a revision.
    with pytest.raises(NodeFailed) as caught:
        revised(
            tmp_path,
            producers="Qwen2.5-7B-Instruct-Q4_K_M.gguf",
            evaluators="qwen2.5-7b-instruct-q8_0.gguf",
        )
    assert isinstance(caught.value.__cause__, SameModel)


def test_two_models_by_their_servers_word_go_through(tmp_path: Path) -> None:
    result = revised(
        tmp_path,
        producers="Qwen2.5-7B-Instruct-Q4_K_M.gguf",
        evaluators="Meta-Llama-3.1-8B-Instruct-Q8_0.gguf",
    )
    assert result.result == GOOD
    assert result.separation is not None
    assert result.separation.relation == "unknown", "as the settings name them"
