"""The run, as a pipeline's nodes meet it: models, memory and the loop behind a handful of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from harness.errors import InvalidInput, ReplyInvalid
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
from harness.rubric import Draft, Evaluator, Rubric, load_rubric
from harness.session.roles import PRODUCER
from harness.session.session import Session
from harness.trace import Span
from harness.wiggum import LoopLimits, Reviser, WiggumResult, revise_until_met

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
        rubric: str,
        sources: Sequence[str] = (),
        draft: str | None = None,
        max_rounds: int = 3,
        max_output_tokens: int = 512,
    ) -> WiggumResult:
        """Revises a draft until it meets a rubric, or there is a reason to stop.

        Args:
            task: What the text is for; every round keeps to it.
            rubric: A rubric's name, or the path of its file.
            sources: What the text may rest on; the evaluator sees it too.
            draft: Where to start; the producer writes one when left out.
            max_rounds: Evaluations at most.
            max_output_tokens: Room for the text, or for one section of it when revised.

        Raises:
            RubricInvalid: There is no such rubric, or it has a mistake.
            ConfigurationInvalid: It needs a judge, and no evaluator is configured.
            SameModel: Producer and evaluator turn out to be one model, by their servers' word.
            SameFamily: The same of relatives, where they are refused.
            EvaluationFailed: Even the first draft could not be evaluated.
            InferenceError: There was no first draft, or the evaluator could not be reached.
        """
        session = self._session
        # Everything that can be wrong with what was asked, before a model is.
        chosen = await asyncio.to_thread(load_rubric, rubric, directory=session.rubrics)
        limits = LoopLimits(max_rounds=max_rounds, focus_below=chosen.focus_below)
        evaluator = Evaluator(chosen, ask=session.served.chat, model=session.roles.evaluator)
        producer = session.roles.model(PRODUCER)

        draft_span = None
        if draft is None:
            with session.trace.span("draft") as span:
                draft_span = span.id
                draft = await self.chat(
                    PRODUCER,
                    _draft_prompt(task, sources, chosen),
                    max_output_tokens=max_output_tokens,
                )
        if not draft.strip():
            raise ReplyInvalid("the first draft is empty", endpoint=producer, text=draft)
        result = await revise_until_met(
            Draft(text=draft, task=task, sources=tuple(sources)),
            evaluator=evaluator,
            reviser=Reviser(
                ask=session.served.chat,
                model=producer,
                requirements=chosen.requirements,
                max_output_tokens=max_output_tokens,
            ),
            limits=limits,
            tracer=session.trace,
            draft_span=draft_span,
        )
        session.served.refuse_kin()
        session.loops.append(result)
        return result


def _draft_prompt(task: str, sources: Sequence[str], rubric: Rubric) -> str:
    """What the producer is asked for: it is told what its draft will be measured by."""
    requirements = "\n".join(f"- {requirement}" for requirement in rubric.requirements)
    return "\n\n".join([*sources, task, f"What the text must be like:\n{requirements}"])
