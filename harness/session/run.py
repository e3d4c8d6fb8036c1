"""The run, as a pipeline's nodes meet it: models, memory and the loop behind a handful of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from harness.errors import InvalidInput
from harness.inference import (
    ChatRequest,
    CountRequest,
    Embeddings,
    EmbedRequest,
    Prompt,
    ReplyType,
    as_messages,
)
from harness.memory import Hit, Passage
from harness.rubric import Draft, Rubric, Verdict
from harness.session.evaluation import ChosenRubric, choose_rubric, evaluate
from harness.session.loop import run_loop
from harness.session.session import Session
from harness.trace import Span
from harness.wiggum import LoopLimits, RevisionMode, Round, WiggumResult

T = TypeVar("T")


class Run:
    """What a node may ask for; every node of a run receives the same one.

    Args:
        session: The open parts.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def id(self) -> str:
        """The run's name, which its files bear."""
        return self._session.trace.run_id

    def span(self, name: str, /, **attributes: object) -> Span:
        """Shows some of the node's own work in the timeline: `with run.span("parse", rows=7):`.

        Args:
            name: A fixed phrase; those of the harness's own spans (`chat`, `load`, …) mean theirs.
            attributes: What varies: JSON values.
        """
        return self._session.trace.span(name, **attributes)

    def counter(self, name: str, value: float, *, unit: str) -> None:
        """Shows a quantity's new value over time, on the node's track."""
        self._session.trace.counter(name, value, unit=unit)

    def invitation(self) -> str:
        """A text with which another process can record what it does for this node.

        Hand it over as an argument or a variable; there, `with JoinedTrace(text) as trace:` gives a
        tracer whose records are merged into the run's when its journal is read. It names the run's
        secret variables and holds none of their values: those are taken from the environment there.
        """
        return self._session.trace.invitation()

    @overload
    async def chat(
        self,
        role: str,
        prompt: Prompt,
        *,
        max_output_tokens: int = ...,
        temperature: float = ...,
        frequency_penalty: float = ...,
        seed: int | None = ...,
        stop: Sequence[str] = ...,
        timeout_s: float | None = ...,
        on_text: Callable[[str], None] | None = ...,
    ) -> str: ...
    @overload
    async def chat(
        self,
        role: str,
        prompt: Prompt,
        *,
        returns: type[T],
        max_output_tokens: int = ...,
        temperature: float = ...,
        frequency_penalty: float = ...,
        seed: int | None = ...,
        stop: Sequence[str] = ...,
        timeout_s: float | None = ...,
    ) -> T: ...
    # Annotated and Literal forms are types to pydantic, and not `type[T]` to the type checker.
    @overload
    async def chat(
        self,
        role: str,
        prompt: Prompt,
        *,
        returns: Any,  # noqa: ANN401
        max_output_tokens: int = ...,
        temperature: float = ...,
        frequency_penalty: float = ...,
        seed: int | None = ...,
        stop: Sequence[str] = ...,
        timeout_s: float | None = ...,
    ) -> Any: ...  # noqa: ANN401
    async def chat(
        self,
        role: str,
        prompt: Prompt,
        *,
        returns: Any = None,
        max_output_tokens: int = 512,
        temperature: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        timeout_s: float | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Any:
        """Asks the model that plays a role.

        Args:
            role: `producer`, `planner`, or any name under `[roles]`.
            prompt: A text, or a conversation.
            returns: The type to answer in: a pydantic model, a dataclass, a builtin, or any of
                these annotated. The server is given its JSON Schema. A text when left out.
            max_output_tokens: Where the reply is cut.
            temperature: 0 is greedy.
            frequency_penalty: From 0 to 2; keeps small models from saying one thing for ever.
            seed: Makes sampling repeatable where the server can.
            stop: Texts that end the reply.
            timeout_s: Longest that it may take, if less than the endpoint's.
            on_text: Told each piece of the answer as it arrives.

        Raises:
            ConfigurationInvalid: No model plays the role.
            SameModel: By the server's word it is the model that it must not be.
            SameFamily: The same of a relative, where those are refused.
            InferenceError: There is no reply, or it is not of the type asked for.
        """
        reply_type: ReplyType[Any] | None = None if returns is None else ReplyType(returns)
        model = self._session.roles.model(role)
        completion = await self._session.served.chat(
            ChatRequest(
                model=model,
                role=role,
                messages=as_messages(prompt),
                max_output_tokens=max_output_tokens,
                temperature=temperature,
                frequency_penalty=frequency_penalty,
                seed=seed,
                stop=tuple(stop),
                reply_schema=reply_type.schema if reply_type else None,
                timeout_s=timeout_s,
                on_text=on_text,
            )
        )
        if reply_type is None:
            return completion.text.strip()
        return reply_type.parse(completion, endpoint=model)

    async def embed(self, role: str, texts: Sequence[str]) -> Embeddings:
        """Makes vectors of texts, by the model that plays a role.

        Raises:
            ConfigurationInvalid: No model plays the role.
            NotOffered: Its server does not embed.
            InferenceError: There are no vectors.
        """
        model = self._session.roles.model(role)
        request = EmbedRequest(model=model, role=role, texts=tuple(texts))
        return await self._session.shim.embed(request)

    async def count_tokens(self, role: str, prompt: Prompt) -> int:
        """How many tokens a prompt is to the model that plays a role, by its own tokenizer.

        Raises:
            ConfigurationInvalid: No model plays the role.
            NotOffered: Its server does not count.
            InferenceError: There is no count.
        """
        model = self._session.roles.model(role)
        request = CountRequest(model=model, role=role, messages=as_messages(prompt))
        return await self._session.shim.count_tokens(request)

    async def remember(
        self, document: str, *, title: str = "", source: str = ""
    ) -> tuple[Passage, ...]:
        """Splits a Markdown document into passages and keeps them for `recall`.

        Args:
            document: The text.
            title: For passages before the first heading.
            source: Where it is from; returned with every hit.

        Returns:
            Its passages, in order, with the trail of headings they stand under as title.

        Raises:
            InvalidInput: The document is empty.
            MemoryStoreFailed: It could not be kept.
        """
        if not document.strip():
            raise InvalidInput("the document is empty; there is nothing to remember")
        return await self._session.passages.remember(document, title=title, source=source)

    async def recall(self, query: str, *, limit: int = 4) -> list[Hit]:
        """The passages nearest to a question, best first, at most `limit`."""
        return await self._session.passages.recall(query, limit=limit)

    async def wiggum(
        self,
        task: str,
        *,
        rubric: str | Path | Rubric,
        sources: Sequence[str] = (),
        draft: str | None = None,
        max_rounds: int = 3,
        max_tokens: int | None = None,
        max_cost_usd: float | None = None,
        max_seconds: float | None = None,
        revise: RevisionMode = "sections",
        revise_from: Literal["best", "last"] = "best",
        rescore: Literal["all", "changed"] = "all",
        max_output_tokens: int = 512,
        rounds: Sequence[Round] = (),
    ) -> WiggumResult:
        """Revises a draft until it meets a rubric, or there is a reason to stop.

        At a limit it ends with the best draft that it has; no revision is begun that might not be
        evaluated within it.

        Args:
            task: What the text is for; every round keeps to it.
            rubric: A rubric's name, the path of its file, or itself.
            sources: What the text may rest on; the evaluator sees it too.
            draft: Where to start; the producer writes one when left out.
            max_rounds: Evaluations at most.
            max_tokens: Of all its calls, in and out, at most.
            max_cost_usd: Of all its calls whose price is known.
            max_seconds: How long it may take.
            revise: Whether only the sections that were criticised are written again, where there
                are headings, or the whole draft.
            revise_from: Which draft a revision is made from.
            rescore: Whether a revision is judged anew in everything, or where it changed, and
                then as a whole before it passes.
            max_output_tokens: Room for the text, or for one section of it when revised.
            rounds: Those of a loop that was cut off, to go on behind; `rounds_from` reads them.

        Raises:
            RubricInvalid: There is no such rubric, or it has a mistake.
            InvalidInput: A limit leaves nothing to be done, or the rounds are not of this loop.
            ConfigurationInvalid: It needs a judge, and no evaluator is configured.
            SameModel: Producer and evaluator turn out to be one model, by their servers' word.
            SameFamily: The same of relatives, where they are refused.
            LimitReached: The limits leave no room for a first draft and its evaluation.
            EvaluationFailed: Even the first draft could not be evaluated.
            InferenceError: There was no first draft, or the evaluator could not be reached.
        """
        return await run_loop(
            self._session,
            task,
            chosen=await self._choose(rubric),
            sources=sources,
            draft=draft,
            limits=LoopLimits(
                max_rounds=max_rounds,
                max_tokens=max_tokens,
                max_cost_usd=max_cost_usd,
                max_seconds=max_seconds,
            ),
            revise=revise,
            revise_from=revise_from,
            rescore=rescore,
            max_output_tokens=max_output_tokens,
            rounds=rounds,
        )

    async def evaluate(
        self,
        draft: str,
        *,
        rubric: str | Path | Rubric,
        task: str = "",
        sources: Sequence[str] = (),
    ) -> Verdict:
        """One verdict on a draft, by whoever judges in this run.

        Args:
            draft: The text.
            rubric: A rubric's name, the path of its file, or itself.
            task: What it was written for.
            sources: What it may rest on.

        Raises:
            RubricInvalid: There is no such rubric, or it has a mistake.
            ConfigurationInvalid: It needs a judge, and no evaluator is configured.
            EvaluationFailed: No score could be had.
            InferenceError: The evaluator could not be reached.
        """
        return await evaluate(
            self._session,
            Draft(text=draft, task=task, sources=tuple(sources)),
            await self._choose(rubric),
        )

    async def _choose(self, rubric: str | Path | Rubric) -> ChosenRubric:
        return await asyncio.to_thread(choose_rubric, rubric, rubrics=self._session.rubrics)
