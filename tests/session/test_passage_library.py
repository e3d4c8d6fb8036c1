"""A run's passages: what is kept of a document, what a recall finds, and what the trace shows."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from embedding_backend import DIMENSIONS, EmbeddingBackend, vectors_by_words
from sample_runs import load_run
from session_runs import codes, fail, instants_of, pipeline_of, refused, run, settings_of, spans_of

from harness import Run, ScriptedBackend
from harness.errors import EndpointUnreachable, InferenceError, ServerError
from harness.inference.completion import Ranking
from harness.session.passages import EndpointEmbedder

TEA = "# Tea\n\nSteep green tea for three minutes.\n\n# Bread\n\nLet the dough rise twice.\n"
HIDDEN = "An invoice\u202e of https://evil.example/."
LONG = " ".join(f"word{number}" for number in range(60))
QUESTION = "how long does green tea steep"


def run_node(node, settings, **how):
    return run(pipeline_of(node), settings, **how)


def kept_in(tmp_path, **memory):
    return settings_of(tmp_path, memory={"path": tmp_path / "memory", **memory})


def test_a_filter_that_asks_for_nothing_is_refused_by_its_name(tmp_path):
    async def recalling(run: Run) -> int:
        return len(await run.recall(QUESTION, where={"year": None}))

    error = fail(pipeline_of(recalling), kept_in(tmp_path))
    assert "'year' asks for a value of type NoneType" in str(error)


def test_the_trace_shows_which_passages_of_which_run_were_recalled(tmp_path):
    async def remembering(run: Run) -> list[str]:
        return [one.id for one in await run.remember(TEA, source="kitchen.md", quality=8.0)]

    async def recalling(run: Run) -> list[str]:
        assert await run.recall("quarterly revenue of shipping companies") == []
        return [hit.title for hit in await run.recall(QUESTION, limit=1)]

    async def nothing() -> int:
        return 1

    settings = kept_in(tmp_path)
    run_node(nothing, settings)
    assert not (tmp_path / "memory").exists()
    first, again = (run_node(remembering, settings) for _ in range(2))
    assert first.result == again.result, "a document that comes again is known"
    (known,) = spans_of(again, "remember")
    assert (known["added"], known["known"], known["merged"]) == (0, 2, [])
    second = run_node(recalling, settings)
    assert second.result == ["Tea"]
    _, recall = spans_of(second, "recall")
    assert (recall["query"], recall["mode"]) == (QUESTION, "hybrid")
    assert (recall["where"], recall["fallback"], recall["behind"]) == (None, None, 0)
    (hit,) = recall["hits"]
    assert (hit["id"], hit["source"]) == (first.result[0], "kitchen.md")
    assert (hit["run"], hit["rank"]) == (first.run_id, 1)


def test_what_is_remembered_is_given_back_as_it_is_recalled_by_filter_and_mode(tmp_path):
    async def both(run: Run) -> list[str]:
        kept = await run.remember("Green tea in the morning.", metadata={"day": 1})
        kept += await run.remember("Black tea in the evening.", metadata={"day": 2})
        where = {"day": (2, 3), "run": run.id}
        (hit,) = await run.recall("tea", mode="lexical", where=where)
        assert hit.vector is None
        assert hit.passage in kept
        assert hit.passage.metadata == {"day": 2, "run": run.id}
        return [hit.text]

    result = run_node(both, settings_of(tmp_path))
    assert result.result == ["Black tea in the evening."]
    (recall,) = spans_of(result, "recall")
    assert recall["mode"] == "lexical"
    assert recall["where"] == {"day": [2, 3], "run": result.run_id}


def test_a_secret_is_replaced_before_it_is_remembered_and_a_warning_says_so(tmp_path, monkeypatch):
    secret = "hunter2-and-more-0123"
    monkeypatch.setenv("MY_KEYS", secret)

    async def leaking(run: Run) -> list[str]:
        kept = await run.remember(f"# Notes\n\nThe key is {secret}.", metadata={"of": secret})
        (hit,) = await run.recall("the key", mode="lexical")
        assert hit.passage in kept
        return [hit.text, str(hit.passage.metadata["of"])]

    result = run_node(leaking, kept_in(tmp_path))
    assert result.result == ["The key is [redacted].", "[redacted]"]
    assert "memory.secret-replaced" in codes(result.warnings)
    files = [path for path in (tmp_path / "memory").rglob("*") if path.is_file()]
    assert not any(secret.encode() in path.read_bytes() for path in files)


def test_a_recall_gives_whole_passages_within_a_budget_in_order(tmp_path):
    async def both(run: Run) -> list[list[str]]:
        await run.remember("# Tea\n\nGreen tea.\n\n# Long\n\nTea. " + "Words of it. " * 200)
        await run.remember("# Brief\n\nTea is late.")
        budgets = [None, 100_000, 40, 0]
        found = [await run.recall("tea", limit=9, mode="lexical", budget_tokens=b) for b in budgets]
        return [[hit.title for hit in hits] for hits in found]

    everything, ample, little, none = run_node(both, settings_of(tmp_path)).result
    assert len(everything) == 3
    assert ample == everything
    assert little == [title for title in everything if title != "Long"]
    assert none == []


@pytest.mark.parametrize("merge", [True, False])
def test_what_says_the_same_is_given_back_as_the_passage_that_it_became(tmp_path, merge):
    async def twice(run: Run) -> list[str]:
        first = await run.remember(f"{LONG} cafe\u0301", source="a")
        second = await run.remember(f"{LONG} caf\u00e9", source="b")
        assert (first[0].id == second[0].id) is merge
        return [one.source for one in second]

    result = run_node(twice, kept_in(tmp_path, merge=merge))
    assert result.result == (["a"] if merge else ["b"])
    *_, merging = spans_of(result, "remember")
    assert len(merging["merged"]) == merge


@pytest.mark.parametrize("content", ["full", "hash"])
def test_a_refused_passage_is_a_warning_and_quoted_where_texts_are_recorded(tmp_path, content):
    async def poisoned(run: Run) -> list[str]:
        kept = await run.remember(
            f"# Zanzibar\n\nCloves grow there.\n\n# News\n\n{HIDDEN}", metadata={"k": "Pemba"}
        )
        assert len(await run.recall("cloves", where={"k": "Pemba"})) == 1
        return [one.title for one in kept]

    result = run_node(poisoned, settings_of(tmp_path, trace={"content": content}))
    assert (result.status, result.result) == ("finished", ["Zanzibar"])
    assert codes(result.warnings) == ["memory.passage-refused"]
    (refused,) = instants_of(result, "refused")
    assert (refused["title"] == "News") == (content == "full")
    journal = result.files.journal.read_text(encoding="utf-8").casefold()
    words = ("zanzibar", "cloves", "pemba", "evil.example", "news")
    assert [word in journal for word in words] == [content == "full"] * len(words)


def test_the_runs_own_field_cannot_be_claimed(tmp_path):
    async def claiming(run: Run) -> int:
        return len(await run.remember(TEA, metadata={"run": "another"}))

    with refused("memory.metadata-reserved"):
        run_node(claiming, settings_of(tmp_path))


def test_novelty_falls_when_a_text_is_known(tmp_path):
    async def measured(run: Run) -> list[float]:
        before = await run.novelty(["Steep green tea for three minutes."])
        await run.remember(TEA)
        known = "Tea Steep green tea for three minutes."
        # A lone text is one text, and not its letters.
        return [before, await run.novelty([known]), await run.novelty(known)]

    known = pytest.approx(0, abs=0.1)
    assert run_node(measured, settings_of(tmp_path)).result == [10.0, known, known]


# --- an endpoint that embeds ---------------------------------------------------------------------


def embedding(tmp_path, words, node, *, failing=False, **tables):
    settings = settings_of(tmp_path, memory={"embedder": "words"}, **tables)
    backends = {"producer": ScriptedBackend([]), "words": words}
    return (fail if failing else run)(pipeline_of(node), settings, backends=backends)


async def many(run: Run) -> int:
    await run.remember(TEA)
    hits = await asyncio.gather(*(run.recall(f"dough {number}") for number in range(64)))
    return len(hits)


def test_an_endpoint_embeds_what_is_remembered_and_what_is_asked_many_times_at_once(tmp_path):
    words = EmbeddingBackend(uses_threads=True)
    result = embedding(tmp_path, words, many)
    assert result.result == 64
    assert "Bread Let the dough rise twice." in [text for call in words.embedded for text in call]
    spans = {span.id: span for span in load_run(result.files.journal).spans}
    parents = {
        spans[one.parent].name for one in spans.values() if one.name == "embed" and one.parent
    }
    assert {"remember", "recall"} <= parents


def test_calls_to_embed_count_towards_the_limits_and_fail_their_node(tmp_path):
    result = embedding(tmp_path, EmbeddingBackend(), many, limits={"max_calls": 1})
    assert (result.status, result.spent.calls) == ("stopped", 1)
    words = EmbeddingBackend()
    words.error = EndpointUnreachable("nobody answers", endpoint="words")
    assert embedding(tmp_path, words, many, failing=True).__cause__.code == "call.unreachable"


# --- an endpoint that ranks ----------------------------------------------------------------------

CITIES = "\n\n".join(f"# Tea in {city}\n\nGreen tea, as in {city}." for city in "ABCDEFGHIJ")


class Ranker(ScriptedBackend):
    """Ranks texts that speak of a city by its letter; the last is the best."""

    def __init__(self, error=None):
        super().__init__([])
        self.asked = []
        self.error = error

    async def rerank(self, request):
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        scores = tuple(float(ord(text.rstrip(".")[-1])) for text in request.texts)
        return Ranking(scores=scores, input_tokens=7, model_id="bge")


def reranked(tmp_path, ranker, node, **tables):
    settings = settings_of(tmp_path, memory={"rerank": "ranker"}, **tables)
    backends = {"producer": ScriptedBackend([]), "ranker": ranker}
    return run(pipeline_of(node), settings, backends=backends)


async def of_tea(run: Run) -> list[tuple[str, int, bool]]:
    await run.remember(CITIES)
    hits = await run.recall("green tea", limit=2)
    return [(hit.title, hit.rank, hit.reranked is None) for hit in hits]


def test_what_a_search_found_is_ranked_again_by_an_endpoint(tmp_path):
    ranker = Ranker()
    result = reranked(tmp_path, ranker, of_tea)

    (asked,) = ranker.asked
    assert (asked.query, len(asked.texts)) == ("green tea", 8), "four for each that is wanted"
    best = sorted((text.rstrip(".")[-1] for text in asked.texts), reverse=True)[:2]
    assert result.result == [(f"Tea in {best[0]}", 1, False), (f"Tea in {best[1]}", 2, False)]
    (span,) = spans_of(result, "rerank")
    assert (span["model"], span["role"], span["texts"], span["input_tokens"]) == (
        *("ranker", "memory"),
        *(8, 7),
    )
    (recall,) = spans_of(result, "recall")
    assert [hit["reranked"] for hit in recall["hits"]] == [float(ord(city)) for city in best]
    assert (result.spent.calls, result.spent.input_tokens) == (1, 7)


@pytest.mark.parametrize(
    "error", [ServerError("too long", status=400), None], ids=["refused", "cannot rank"]
)
def test_where_nothing_ranks_the_order_of_the_search_stays_with_a_warning(tmp_path, error):
    ranker = ScriptedBackend([]) if error is None else Ranker(error)
    result = reranked(tmp_path, ranker, of_tea)

    assert [row[1:] for row in result.result] == [(1, True), (2, True)]
    assert codes(result.warnings) == ["memory.not-reranked"]


def test_at_most_a_hundred_are_ranked_again_and_none_where_nothing_was_found(tmp_path):
    ranker = Ranker()

    async def often(run: Run) -> int:
        assert await run.recall("green tea") == []
        await run.remember("\n\n".join(f"# Tea {n}\n\nGreen tea in A{n}." for n in range(150)))
        await run.recall("green tea", limit=30)
        return len(await run.recall("green tea", limit=120))

    assert reranked(tmp_path, ranker, often).result == 120
    assert [len(one.texts) for one in ranker.asked] == [100, 120]


def embedded(backend, texts, *, then=lambda: None):
    async def main():
        embedder = await EndpointEmbedder.open("tag", ask=backend.embed)
        assert (embedder.name, embedder.dimensions) == (f"tag/{backend.model_id}", DIMENSIONS)
        then()
        return await asyncio.to_thread(embedder.embed, texts)

    return asyncio.run(main())


def test_vectors_come_in_the_texts_order_and_with_unit_length():
    texts = [f"text {number} of many" for number in range(150)]
    backend = EmbeddingBackend("e5-small")
    vectors = embedded(backend, texts)
    raw = vectors_by_words(texts)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, raw / np.linalg.norm(raw, axis=1, keepdims=True), rtol=1e-6)
    assert [len(call) for call in backend.embedded[1:]] == [64, 64, 22], "and no call is too large"


@pytest.mark.parametrize(
    "said", [{"model_id": "after"}, {"error": ServerError("no", endpoint="t")}]
)
def test_vectors_of_another_model_and_errors_reach_the_thread(said):
    backend = EmbeddingBackend("before")
    with pytest.raises(ServerError):
        embedded(backend, ["owl"], then=lambda: vars(backend).update(said))


def test_closing_breaks_off_what_is_asked_and_refuses_what_comes_later():
    asked = asyncio.Event()

    async def ask(request):
        if request.texts == ("for ever",):
            asked.set()
            await asyncio.Event().wait()
        return await EmbeddingBackend().embed(request)

    async def main():
        embedder = await EndpointEmbedder.open("tag", ask=ask)
        waiting = asyncio.create_task(asyncio.to_thread(embedder.embed, ["for ever"]))
        await asked.wait()
        embedder.close()
        later = asyncio.to_thread(embedder.embed, ["owl"])
        return await asyncio.gather(waiting, later, return_exceptions=True)

    for error in asyncio.run(main()):
        assert isinstance(error, InferenceError)
        assert "has ended" in str(error)
