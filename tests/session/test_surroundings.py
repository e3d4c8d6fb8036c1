"""A change between two parts of a run: the calls that depend on it are made again, no others."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator
from itertools import count

import pytest
from servers.named_models import NamedModels
from session_runs import settings_of

from harness import Evaluation, Pipeline, Run, ScriptedBackend
from harness.graph import Cache
from harness.session import Settings, read_earlier_run, rehearse
from harness.session.surroundings import Surroundings
from harness.trace import Journal
from harness.trace.records import NodeOutput

# One call for each ingredient, and some for several.
PIPELINE = '''
from harness import Pipeline, Run

GREETING = "Hello"
flow = Pipeline("flow")


def helper(text):
    return text.strip()


def closure(word):
    def inner(text):
        return f"{text} {word}"
    return inner


ending = closure("bye")


def look_up(name: str) -> str:
    """Looks a name up."""
    return name.upper()


@flow.node
def local(text: str) -> str:
    return text + "."


@flow.node
def constant(text: str) -> str:
    return GREETING + text


@flow.node
def helped(text: str) -> str:
    return helper(text)


@flow.node
def closed(text: str) -> str:
    return ending(text)


@flow.node
async def greedy(run: Run, text: str) -> str:
    return await run.chat("producer", text)


@flow.node
async def sampled(run: Run, text: str) -> str:
    return await run.chat("producer", text, temperature=0.7)


@flow.node
async def seeded(run: Run, text: str) -> str:
    return await run.chat("producer", text, temperature=0.7, seed=3)


@flow.node
async def planned(run: Run, text: str) -> str:
    return await run.chat("planner", text)


@flow.node
async def tooled(run: Run, text: str) -> str:
    return (await run.agent("producer", text, tools=[look_up])).text


@flow.node
async def revised(run: Run, text: str) -> str:
    return (await run.wiggum(text, rubric="own", max_rounds=1)).text


@flow.node
async def judged(run: Run, text: str) -> bool:
    return (await run.evaluate(text, rubric="own")).passed


@flow.node
async def caught(run: Run, text: str) -> str:
    try:
        return await run.chat("broken", text, max_output_tokens=5)
    except Exception:
        return "no answer"
'''
RUBRIC = """
title: Own
purpose: Short.
pass_at: 8
dimensions:
  - { name: length, checks: [{ check: words, min: 1, max: 99 }] }
"""
ASKING = {"greedy", "sampled", "seeded", "tooled", "revised"}


class Project:
    """A pipeline's file with its rubric and prompts, and settings."""

    def __init__(self, folder, server, monkeypatch):
        monkeypatch.chdir(folder)
        # Python would run the bytecode of a file that was edited within a second.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        self.folder, self.pipeline = folder, PIPELINE
        self.endpoints = {
            tag: {
                "url": server.url,
                "model_id": f"{tag}-7b",
                "stream": False,
                "retry": {"max_attempts": 1},
            }
            for tag in ("a", "b", "c", "d")
        }
        server.failing.add("d-7b")
        self.roles = {"producer": "a", "planner": "c", "broken": "d"}
        self.seed = None
        (folder / "rubrics").mkdir()
        self.write("rubrics/own.yaml", RUBRIC)
        self.numbers = count()

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def edit(self, old, new):
        assert old in self.pipeline
        self.pipeline = self.pipeline.replace(old, new)

    @property
    def settings(self):
        return settings_of(
            self.folder,
            endpoints=self.endpoints,
            roles=self.roles,
            rubrics=self.folder / "rubrics",
            seed=self.seed,
        )

    def flow(self):
        path = self.folder / "flow.py"
        path.write_text(self.pipeline)
        spec = importlib.util.spec_from_file_location(f"flow_{next(self.numbers)}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.flow

    async def run(self, **how):
        return await self.flow().run_async({"text": "tea"}, settings=self.settings, **how)

    async def foreseen(self, result):
        earlier = read_earlier_run(result.files.journal)
        found = await rehearse(self.flow(), {}, earlier, settings=self.settings)
        return {one.node: one.reason for one in found.made_again}


def of_endpoint(tag, **settings):
    def change(project):
        project.endpoints[tag] |= settings

    return change


def of_role(role, tag):
    def change(project):
        project.roles |= {role: tag}

    return change


def of_seed(project):
    project.seed = 7


CHANGES = {
    "nothing": (lambda _: None, set(), ""),
    "model": (of_role("producer", "b"), ASKING, "model_id was a-7b, is b-7b"),
    "model_id": (of_endpoint("a", model_id="x-7b"), ASKING, "model_id was a-7b, is x-7b"),
    "setting": (of_endpoint("a", drop=["top_p"]), ASKING, 'drop was [], is ["top_p"]'),
    "a setting that changes no reply": (of_endpoint("a", timeout_s=9.0), set(), ""),
    "an endpoint's name": (
        lambda project: (
            project.endpoints.update(z=project.endpoints["a"]) or project.roles.update(producer="z")
        ),
        set(),
        "",
    ),
    "another role's model": (of_role("planner", "b"), {"planned"}, "'planner' changed"),
    "the model of a call that failed": (of_endpoint("d", model_id="e"), {"caught"}, "'broken'"),
    "seed": (of_seed, {"sampled"}, "the seed of the run changed"),
    "rubric": (
        lambda project: project.write("rubrics/own.yaml", RUBRIC.replace("99", "1")),
        {"revised", "judged"},
        "rubric 'own' changed",
    ),
    "prompts": (
        lambda p: p.write("rubrics/own.yaml", f"{RUBRIC}prompts: {{ opening: Do write. }}\n"),
        {"revised"},
        "a prompt of rubric 'own' changed",
    ),
    "tool": (lambda p: p.edit("name.upper()", "name.lower()"), {"tooled"}, "'look_up'"),
    "closure": (lambda p: p.edit('"bye"', '"see you"'), {"closed"}, "'word'"),
    "constant": (lambda p: p.edit('"Hello"', '"Hi"'), {"constant"}, "'GREETING'"),
    "helper": (lambda p: p.edit("text.strip()", "text.lower()"), {"helped"}, "'helper'"),
    "code": (lambda p: p.edit('text + "."', 'text + "!"'), {"local"}, "'local'"),
}


@pytest.mark.parametrize(("change", "again", "reason"), CHANGES.values(), ids=CHANGES)
def test_the_calls_that_depend_on_a_change_are_made_again_and_no_others(
    tmp_path, monkeypatch, change, again, reason
):
    async def main():
        async with NamedModels() as server:
            project = Project(tmp_path, server, monkeypatch)
            first = await project.run()
            change(project)
            foreseen = await project.foreseen(first)
            second = await project.run(resume=first.run_id)
            asked = len(server.chats)
            third = await project.run(resume=first.run_id)
            return first, foreseen, second, third, len(server.chats) - asked

    first, foreseen, second, third, asked_again = asyncio.run(main())
    names = set(first.outputs)
    assert set(foreseen) == names - set(second.reused) == again
    # Both say it in the same words.
    assert foreseen == {one.node: one.reason for one in second.reruns}
    assert all(reason in words for words in foreseen.values())
    assert (third.had_finished, asked_again) == (True, 0)


def test_a_change_that_is_taken_back_costs_nothing(tmp_path, monkeypatch):
    async def main():
        async with NamedModels() as server:
            project = Project(tmp_path, server, monkeypatch)
            first = await project.run()
            before = project.pipeline
            project.edit('await run.chat("planner", text)', 'await run.chat("planner", text * 2)')
            await project.run(resume=first.run_id)
            asked, project.pipeline = len(server.chats), before
            again = await project.run(resume=first.run_id)
            return first, again, len(server.chats) - asked

    first, again, asked = asyncio.run(main())
    assert (again.outputs, asked) == (first.outputs, 0)


@pytest.mark.parametrize("detour", ["rubric", "prompts", "code"])
def test_a_change_that_was_taken_back_is_no_reason(tmp_path, monkeypatch, detour):
    async def main():
        async with NamedModels() as server:
            project = Project(tmp_path, server, monkeypatch)
            first = await project.run()
            before = project.pipeline
            if detour == "code":
                project.edit("max_rounds=1", "max_rounds=2")
            else:
                CHANGES[detour][0](project)
            await project.run(resume=first.run_id)
            project.pipeline = before
            project.write("rubrics/own.yaml", RUBRIC)
            await project.run(resume=first.run_id)
            project.roles["producer"] = "b"
            foreseen = await project.foreseen(first)
            last = await project.run(resume=first.run_id)
            return foreseen, {rerun.node: rerun.reason for rerun in last.reruns}

    for reasons in asyncio.run(main()):
        model = "its model for 'producer' changed (model_id was a-7b, is b-7b)"
        assert reasons["revised"] == model


# --- models --------------------------------------------------------------------------------------


def asking():
    flow = Pipeline("asking")

    @flow.node
    async def answer(run: Run, task: str) -> str:
        return await run.chat("producer", task)

    return flow


def settings(tmp_path, endpoints, **tables):
    ways = {"stream": False, "retry": {"max_attempts": 1}}
    return settings_of(
        tmp_path,
        endpoints={tag: {**ways, **one} for tag, one in endpoints.items()},
        roles={"producer": "a", **tables.pop("roles", {})},
        **tables,
    )


def test_two_models_in_turn_into_one_output_each_have_their_own_figures(tmp_path):
    names = {"a": "a-7b", "b": "b-7b says at length"}
    rubric = tmp_path / "own.yaml"
    rubric.write_text(RUBRIC.replace("min: 1", "min: 5"))

    async def main():
        async with NamedModels() as server:
            both = {tag: {"url": server.url, "model_id": name} for tag, name in names.items()}
            seen = []
            for tag in ("a", "b", "a", "b", "a"):
                asked = len(server.chats)
                rows = [{"id": "1", "task": "tea"}, {"id": "2", "task": "milk"}]
                done = await Evaluation(asking(), rows, rubric=rubric).run_async(
                    output=tmp_path / "out.jsonl",
                    settings=settings(tmp_path, both, roles={"producer": tag}),
                )
                lines = (tmp_path / "out.jsonl").read_text().splitlines()
                models = {json.loads(line)["models"][0]["model"] for line in lines}
                asked = len(server.chats) - asked
                seen.append(
                    (done.samples[0]["output"], models, done.score("own.passed").mean, asked)
                )
            return seen

    of_a = ("a-7b: tea", {names["a"]}, 0.0)
    of_b = (f"{names['b']}: tea", {names["b"]}, 1.0)
    assert asyncio.run(main()) == [(*of_a, 2), (*of_b, 2), (*of_a, 0), (*of_b, 0), (*of_a, 0)]


def test_a_row_that_a_fallback_answered_is_valid_and_names_it(tmp_path):
    async def main():
        async with NamedModels() as server:
            server.failing.add("a-7b")
            chain = {tag: {"url": server.url, "model_id": f"{tag}-7b"} for tag in ("a", "b")}
            chain["a"]["fallback"] = ["b"]
            seen = []
            for change in ({}, {}, {"b": chain["b"] | {"model_id": "c-7b"}}):
                server.failing -= {"a-7b"} if seen else set()
                done = await asking().batch(
                    [{"id": "1", "task": "tea"}],
                    output=tmp_path / "out.jsonl",
                    settings=settings(tmp_path, chain | change),
                )
                (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
                seen.append((done.kept, json.loads(line)["models"]))
            return seen

    def named(tag):
        return [{"role": "producer", "endpoint": tag, "model": f"{tag}-7b"}]

    assert asyncio.run(main()) == [(0, named("b")), (1, named("b")), (0, named("a"))]


@pytest.mark.parametrize("backend", ["vllm", "openai"])
@pytest.mark.parametrize(("reports", "kept"), [("a-7b", 1), ("a-70b", 0), ("", 0)])
def test_another_address_is_no_change_if_the_server_there_reports_the_same_model(
    tmp_path, reports, kept, backend
):
    async def main():
        async with NamedModels(reports="a-7b") as here, NamedModels(reports=reports) as there:
            for server in (here, there):
                done = await asking().batch(
                    [{"id": "1", "task": "tea"}],
                    output=tmp_path / "out.jsonl",
                    settings=settings(
                        tmp_path, {"a": {"url": server.url, "model_id": "a-7b", "backend": backend}}
                    ),
                )
            return done

    done = asyncio.run(main())
    assert done.kept == kept
    assert kept or "has another address" in done.run.reruns[0].reason


def test_a_pool_is_its_members_whichever_was_drawn(tmp_path, monkeypatch):
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics" / "one.yaml").write_text(
        "title: One\npass_at: 8\nrepeats: 1\n"
        "dimensions: [{ name: relevance, judge: 'Is it answered?' }]\n"
    )

    def judge(_request):
        return '{"relevance": {"evidence": "", "reason": "Yes.", "score": 9}}'

    async def judged(run: Run, task: str) -> float:
        return (await run.evaluate(task, rubric="one")).composite

    flow = Pipeline("flow")
    flow.node(judged)

    def go_on(pool, seed, **how):
        return asyncio.run(
            flow.run_async(
                {"task": "tea"},
                settings=settings_of(
                    tmp_path,
                    rubrics=tmp_path / "rubrics",
                    roles={"evaluator": pool},
                    separation={"pool_seed": seed},
                ),
                backends={tag: ScriptedBackend(judge) for tag in ("p", "q", "r")},
                **how,
            )
        )

    first = go_on(["p", "q"], "1")
    for seed in "2345":
        assert go_on(["q", "p"], seed, resume=first.run_id).had_finished
    other = go_on(["p", "r"], "1", resume=first.run_id)
    assert [one.reason.partition(" (")[0] for one in other.reruns] == [
        "its model for 'evaluator' changed"
    ]


def test_an_item_that_is_given_while_a_nested_call_runs_has_what_that_call_used(tmp_path):
    inner, outer = Pipeline("inner"), Pipeline("outer")
    replies = asyncio.Queue()

    @inner.node
    async def ask(run: Run) -> str:
        await replies.put(await run.chat("producer", "Tea?"))
        await asyncio.sleep(0.01)
        return ""

    @outer.node
    async def items(run: Run) -> AsyncIterator[str]:
        asking = asyncio.create_task(run.call(inner))
        yield await replies.get()
        await asking

    backends = {"producer": ScriptedBackend(["Yes."])}
    ended = outer.run({}, backends=backends, settings=settings_of(tmp_path))
    outputs = Journal(ended.files.journal).items(NodeOutput)
    (uses,) = [output.uses for output in outputs if (output.node, output.item) == ("items", 0)]
    assert uses["reply:producer:producer"] == "producer"


class DroppedAtOnce(dict):
    """Facts that another thread drops as soon as they are written."""

    def __setitem__(self, name, use):
        pass


def test_a_fact_that_another_thread_drops_meanwhile_is_known_all_the_same(tmp_path):
    surroundings = Surroundings(Settings(traces=tmp_path, seed=7), facts=DroppedAtOnce())

    assert surroundings.uses_named("seed")["seed"].digest == "7"


# --- Cache() -------------------------------------------------------------------------------------


def test_a_cache_of_outputs_tells_models_rubrics_and_seeds_apart(tmp_path, monkeypatch):
    async def main():
        async with NamedModels() as server:
            project = Project(tmp_path, server, monkeypatch)
            project.edit('Pipeline("flow")', 'Pipeline("flow", cache=Cache())')
            project.edit(
                "from harness import ", "from harness.graph import Cache\nfrom harness import "
            )
            seen = []
            for change in (*[change for change, *_ in CHANGES.values()][:3], None):
                if change is not None:
                    change(project)
                else:
                    project.endpoints["a"]["model_id"] = "a-7b"
                    project.roles["producer"] = "a"
                ended = await project.run()
                seen.append(set(ended.outputs) - set(ended.reused))
            return seen, set(ended.outputs)

    (first, *rest), names = asyncio.run(main())
    assert first == names
    assert rest == [ASKING, set(), set()]


def test_a_rubric_edited_since_is_not_answered_from_a_cache(tmp_path):
    (tmp_path / "rubrics").mkdir()
    rubric = tmp_path / "rubrics" / "own.yaml"
    flow = Pipeline("flow", cache=Cache())

    @flow.node
    async def score(run: Run, text: str) -> float:
        return (await run.evaluate(text, rubric="own")).composite

    scores = []
    for least in (20, 3, 20):
        rubric.write_text(RUBRIC.replace("min: 1", f"min: {least}"))
        chosen = settings_of(tmp_path, rubrics=rubric.parent)
        ended = asyncio.run(flow.run_async({"text": "one two three four"}, settings=chosen))
        scores.append((ended.result, ended.reused))

    (low, _), (high, of_second), (again, of_third) = scores
    assert low < high
    assert (again, of_second, of_third) == (low, (), ("score",))
