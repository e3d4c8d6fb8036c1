"""`Run`, the object that nodes use: models, memory and the revise loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, TypeVar, Unpack, overload

from harness.errors import InvalidInput, Notice
from harness.graph import Graph, NodeCall, Retry
from harness.graph.graph import ResultT
from harness.graph.state import Use
from harness.inference import (
    ChatOptions,
    ChatRequest,
    Completion,
    Embeddings,
    EmbedRequest,
    Limits,
    Message,
    TextStream,
    as_messages,
)
from harness.inference.answer import answer, chat_request, check_whole, varied
from harness.inference.client import CallSource
from harness.inference.completion import is_visible
from harness.inference.reply_store import VARIATION
from harness.inference.request import Prompt, as_texts
from harness.inference.stream import text_stream
from harness.memory import Filter, Hits, Mode, Passage, Scalar
from harness.rubric import ChosenRubric, Draft, Rubric, Sources, Verdict, by_section
from harness.session.agent import AgentOptions, AgentReplyOptions, AgentResult, run_agent
from harness.session.demand import CallDemand
from harness.session.evaluation import choose_rubric, evaluate, run_loop
from harness.session.mcp_tools import ToolSource
from harness.session.open_run import OpenRun
from harness.session.passages import PassageLibrary
from harness.session.result import CallResult, call_result
from harness.session.roles import EVALUATOR, PRODUCER
from harness.session.tools import Offered, tool_specs
from harness.trace import Span
from harness.trace.records import CutBy
from harness.wiggum import (
    EarlierLoops,
    LoopPolicy,
    RevisionMode,
    Round,
    WiggumResult,
    check_rounds,
    loop_key,
)
from harness.wiggum.policy import FINAL_TEXT

T = TypeVar("T")

_IN_FORM = "Give this answer in the form asked for, and add nothing."


class MapOptions(TypedDict, total=False):
    """The options of `run.map`."""

    name: str | None
    """The step's name; the function's when left out."""
    max_parallel: int | None
    """Calls at once; by default as many as the run allows."""
    retry: Retry | None
    """Whether a failed call is repeated."""


class TextOptions(ChatOptions, total=False):
    """The options of `run.chat` for a text; see `Run.chat`."""

    on_text: Callable[[str], None] | None


class ToolOptions(TextOptions, total=False):
    """The options of `run.chat` with tools."""

    tools: Required[Sequence[Offered]]
    tool_choice: Literal["auto", "required"]


class Run:
    """Everything a node may use. Each call of a node receives its own `Run`."""

    def __init__(
        self,
        opened: OpenRun,
        call: NodeCall,
        *,
        earlier: EarlierLoops | None = None,
        demand: CallDemand | None = None,
    ) -> None:
        self._opened = opened
        self._own_call = call
        self._earlier = earlier or EarlierLoops()
        # Without a budget nothing is forecast, and nothing reads this `CallDemand`.
        self._demand = demand or CallDemand((), roles=opened.casting.roles)

    @property
    def _call(self) -> NodeCall:
        """The call whose code runs now: a mapped function may use the `run` of the node around."""
        return self._own_call.innermost

    @property
    def _caller(self) -> CallSource:
        call = self._call
        label = f"{call.label}{VARIATION}{call.variation}" if call.variation else call.label
        return CallSource(label=label, sending=partial(call.pulse.doing, "sent"))

    @property
    def id(self) -> str:
        """The run's id, also the name of its files."""
        return self._opened.trace.run_id

    def span(self, name: str, /, **attributes: object) -> Span:
        """Shows work of the node in the timeline: `with run.span("parse", rows=7):`.

        Args:
            name: A fixed phrase. The names of the harness's own spans (`chat`, `load`, …) are
                taken.
            attributes: JSON values.
        """
        return self._opened.trace.span(name, **attributes)

    def counter(self, name: str, value: float, *, unit: str) -> None:
        """Shows a quantity's new value on the node's track of the timeline."""
        self._opened.trace.counter(name, value, unit=unit)

    def beat(self) -> None:
        """Gives a sign of life, for `Timeout(idle_s=…)`; every piece of a reply is one too.

        Plain functions may call it from their thread.
        """
        self._call.beat()

    @overload
    async def ask(self, text: str) -> str: ...
    @overload
    async def ask(self, text: str, returns: type[T]) -> T: ...
    async def ask(self, text: str, returns: Any = str) -> Any:
        """Asks a person a question, and returns the answer.

        If no person can be asked at once, the node ends here, the run goes on without it, and ends
        as `waiting`. `harness resume RUN --answer …` calls the node again, and this returns the
        answer. So ask before any work that must not be done twice.

        Args:
            text: The question.
            returns: The type of the answer: `str`, `bool`, a number, a `Literal` of texts, or
                a type that pydantic reads from JSON.
        """
        return await self._call.ask(text, returns)

    async def call(self, pipeline: Graph[ResultT], /, **inputs: object) -> CallResult[ResultT]:
        """Runs another pipeline inside this node, with the same models and journal.

        Its nodes are steps of this run: a resumed run keeps their outputs.

        Args:
            pipeline: The pipeline; this run's limits apply, not its own.
            inputs: By name.

        Raises:
            PipelineInvalid: It has a mistake, or the inputs do not match.
            NodeFailed: One of its nodes failed.
            RunLimitReached: A limit of the run ended it.
        """
        return call_result(pipeline, await self._call.call(pipeline, inputs))

    @overload
    async def map(
        self,
        function: Callable[..., Awaitable[T]],
        items: Sequence[object],
        **options: Unpack[MapOptions],
    ) -> list[T]: ...
    @overload
    async def map(
        self, function: Callable[..., T], items: Sequence[object], **options: Unpack[MapOptions]
    ) -> list[T]: ...
    async def map(
        self, function: Callable[..., Any], items: Sequence[object], **options: Unpack[MapOptions]
    ) -> list[Any]:
        """Calls a function for each item, in parallel: for items known only inside a node.

        Each call is a step of the run, as an item of a mapped node is: a resumed run keeps its
        output.

        Args:
            function: Plain or async, of one parameter, and optionally `run`.
            items: Its arguments.
            options: See `MapOptions`.

        Returns:
            The results, in the order of the items.

        Raises:
            PipelineInvalid: The function cannot be a step.
            NodeFailed: A call failed.
            RunLimitReached: A limit of the run ended it.
        """
        return await self._call.map(function, items, **options)

    @overload
    async def chat(self, role: str, prompt: Prompt, **options: Unpack[TextOptions]) -> str: ...
    @overload
    async def chat(
        self, role: str, prompt: Prompt, **options: Unpack[ToolOptions]
    ) -> Completion: ...
    @overload
    async def chat(
        self, role: str, prompt: Prompt, *, returns: type[T], **options: Unpack[ChatOptions]
    ) -> T: ...
    # Annotated and Literal forms are types to pydantic, and not `type[T]` to the type checker.
    @overload
    async def chat(
        self,
        role: str,
        prompt: Prompt,
        *,
        returns: Any,  # noqa: ANN401
        **options: Unpack[ChatOptions],
    ) -> Any: ...  # noqa: ANN401
    async def chat(
        self,
        role: str,
        prompt: Prompt,
        *,
        returns: Any = None,
        tools: Sequence[Offered] | None = None,
        tool_choice: Literal["auto", "required"] = "auto",
        on_text: Callable[[str], None] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Any:
        """Asks the model that plays a role.

        Args:
            role: `producer`, `planner`, or any name under `[roles]`. The producer's model plays
                roles without a model, unless the name looks like a misspelling.
            prompt: A text, or a conversation.
            returns: The type to answer in: a pydantic model, a dataclass, a builtin, or any of
                these annotated. The server receives its JSON Schema. By default a text;
                `Completion` gives the text with all facts about the call, as `harness.chat` does.
            tools: Functions that the model may ask to call. They are not called: the result is a
                `Completion` with `tool_calls`. `agent` calls them.
            tool_choice: Whether the model decides if it asks for a call, or has to.
            on_text: Called with each piece of the answer as it arrives; after a continued cut, the
                cut word comes again.
            options: See `ChatOptions`.

        Raises:
            ConfigurationInvalid: No model plays the role, or it is misspelt.
            SameModel: The server reports the model that this role must not have.
            SameFamily: The server reports a model of the same family, and the settings refuse that.
            RunLimitReached: The run's limits leave no room for it.
            ReplyCut: The reply was cut; `ReplyFiltered` and `ReplyEmpty` are kinds of it.
            InferenceError: There is no reply, or it is not of the type asked for.
        """
        if role == EVALUATOR:
            # The evaluator of a pool is drawn now at the latest.
            await self._opened.casting.seat()
        model = self._opened.casting.model(role)
        on_cut = options.pop("on_cut", "error")
        attempts = options.pop("attempts", 1)
        request, reply_type = chat_request(
            prompt,
            returns=returns,
            tools=tool_specs(tools or ()),
            tool_choice=tool_choice,
            model=model,
            role=role,
            on_text=on_text,
            **options,
        )
        if self._call.variation and (request.seed is not None or not request.temperature):
            # A reply sampled without a seed differs each time anyway.
            request = varied(request, self._call.variation)
        reply = await answer(
            self._chat, request, reply_type=reply_type, on_cut=on_cut, attempts=attempts
        )
        return reply.text.strip() if returns is None and tools is None else reply

    @overload
    async def agent(
        self, role: str, task: Prompt, *, returns: None = ..., **options: Unpack[AgentOptions]
    ) -> AgentResult[None]: ...
    @overload
    async def agent(
        self, role: str, task: Prompt, *, returns: type[T], **options: Unpack[AgentOptions]
    ) -> AgentResult[T | None]: ...
    @overload
    async def agent(
        self,
        role: str,
        task: Prompt,
        *,
        returns: Any,  # noqa: ANN401
        **options: Unpack[AgentOptions],
    ) -> AgentResult[Any]: ...
    async def agent(
        self,
        role: str,
        task: Prompt,
        *,
        tools: Sequence[ToolSource],
        system: str | None = None,
        returns: Any = None,
        max_steps: int = 10,
        timeout_s: float | None = None,
        max_result_chars: int = 10_000,
        **options: Unpack[AgentReplyOptions],
    ) -> AgentResult[Any]:
        """Lets the model that plays a role call tools until it can answer.

        Each call of a tool is a step of the run, named `node/agent[0]`, `node/agent2[0]` and so on.
        A resumed run repeats no finished call; a call that was under way when the run was killed is
        repeated. The model is told of every failed call. Calls requested in one reply run in
        parallel.

        Args:
            role: As in `chat`.
            task: A text, or a conversation.
            tools: Typed functions, `Tool`s and `mcp(…)` servers.
            system: The system message, before the task.
            returns: The type of the result's `value`: the model is asked for its answer again in
                this type.
            max_steps: Most replies of the model. The results before the last tell it to answer.
            timeout_s: Time limit of a tool's call, if the tool has none of its own.
            max_result_chars: Longest result; the middle of a longer one is left out.
            max_output_tokens: As in `chat`, of each reply.
            on_cut: As in `chat`, for a reply that is cut within its text or after it.
            temperature: 0 is greedy.
            seed: Makes sampling repeatable, if the server supports it.

        Raises:
            InvalidInput: A function cannot be a tool, or a limit is too low.
            ConfigurationInvalid: No model plays the role, or the extra `mcp` is missing.
            McpServerFailed: A server did not start.
            RunLimitReached: A limit of the run ended it; with a higher one, a resumed run continues
                from there.
            ReplyCut: A reply was cut.
            InferenceError: A reply failed, or the answer is not of the type asked for.
        """
        # Counted before anything is awaited, so that agents that begin together differ in name.
        number = self._call.count("agents")
        usable = await self._opened.mcp.tools(tools, timeout_s=timeout_s)
        before = () if system is None else (Message("system", system),)

        async def ask(messages: tuple[Message, ...]) -> Completion:
            reply = await self.chat(role, messages, tools=tuple(t.spec for t in usable), **options)
            if not reply.tool_calls and not is_visible(reply.text):
                # A cut one, since `chat` refuses any other; there is nothing in it to keep.
                check_whole(reply, endpoint=self._opened.casting.model(role))
            return reply

        result = await run_agent(
            ask,
            usable,
            (*before, *as_messages(task)),
            name="agent" if number == 1 else f"agent{number}",
            call=self._call,
            tracer=self._opened.trace,
            role=role,
            max_steps=max_steps,
            max_result_chars=max_result_chars,
        )
        if returns is None or result.stop_reason != "answered":
            return result
        # Asked again without tools, since few servers take a schema and tools together.
        form = [*result.messages, Message("user", _IN_FORM)]
        return replace(result, value=await self.chat(role, form, returns=returns, **options))

    def stream(self, role: str, prompt: Prompt, **options: Unpack[ChatOptions]) -> TextStream:
        """Asks as `chat` does, and yields the text of the answer as it arrives.

            async for piece in (answer := run.stream("producer", task)):
                print(piece, end="")
            print(answer.completion.usage)

        After the first piece, the call is not retried. In a resumed run, a known reply comes as one
        piece. See `TextStream`.
        """
        return text_stream(self.chat, role, prompt, **options)

    async def embed(self, role: str, texts: Sequence[str]) -> Embeddings:
        """Embeds texts with the model that plays a role.

        Raises:
            ConfigurationInvalid: No model plays the role, or it is misspelt.
            RunLimitReached: The run's limits leave no room for it.
            NotOffered: Its server does not embed.
            InferenceError: There are no vectors.
        """
        model = self._opened.casting.model(role)
        request = EmbedRequest(model=model, role=role, texts=as_texts(texts))
        self._demand.note_call(model)
        self._call.use(self._opened.surroundings.uses_of_call(request))
        with self._call.pulse.doing("call"):
            return await self._opened.client.embed(request, caller=self._caller)

    async def remember(
        self,
        document: str,
        *,
        title: str = "",
        source: str = "",
        quality: float | None = None,
        metadata: Mapping[str, Scalar] | None = None,
    ) -> tuple[Passage, ...]:
        """Splits a Markdown document into passages and keeps them for `recall`.

        Each passage's metadata holds the `run` that remembered it first. Passages with invisible
        characters are refused, and secrets are replaced, each with a warning on the run.

        Args:
            document: The text.
            title: Title of passages before the first heading.
            source: A URL or a path; returned with every hit.
            quality: A judgement from 0 to 10: better passages are recalled first.
            metadata: Returned with every hit; `recall` can filter by it.

        Returns:
            The passages as kept, in order; their titles are the headings above them. A passage that
            says nearly the same as a known one is replaced by the known one.

        Raises:
            InvalidInput: The document is empty, or the metadata uses a reserved name.
            MemoryStoreFailed: The document could not be kept.
            InferenceError: The endpoint that embeds gave no vectors.
        """
        if not document.strip():
            raise InvalidInput(
                "the document is empty; there is nothing to remember", code="memory.document-empty"
            )
        return await self._passages().remember(
            document, title=title, source=source, quality=quality, metadata=metadata
        )

    async def recall(
        self,
        query: str,
        *,
        limit: int = 4,
        mode: Mode = "hybrid",
        where: Filter | None = None,
        half_life_days: float | None = None,
        budget_tokens: int | None = None,
    ) -> Hits:
        """Passages that answer a question, most relevant first; empty if nothing matches.

        Args:
            query: Any text; `"words in quotes"` and `title:word` count extra.
            limit: At most so many passages.
            mode: By words and meaning, by words, or by meaning. Without vectors, only words count,
                and the result's `fallback` says why.
            where: Only passages whose metadata, `source` or `title` have these values, or one of
                several values, or numbers in a range: `{"run": run.id}` for passages of this run,
                `{"year": {">=": 2024}}`.
            half_life_days: The age at which a passage's relevance counts half; None if age does
                not count. With `[memory] rerank`, it decides what the model reads, not the order.
            budget_tokens: Room for the passages in a prompt: in order, each is taken whole that
                has room beside those before it. Tokens are counted high, by length.

        Raises:
            InvalidInput: The mode, the limit or the filter is wrong.
            MemoryStoreFailed: The store cannot be read.
            InferenceError: The endpoint that embeds gave no vectors.
        """
        return await self._passages().recall(
            query,
            limit=limit,
            mode=mode,
            where=where,
            half_life_days=half_life_days,
            budget_tokens=budget_tokens,
        )

    async def neighbors(self, passage: Passage, *, count: int = 1) -> list[Passage]:
        """A passage with `count` before it and `count` after it, in order.

        Around a turn these are turns of its conversation; around any other passage, passages of its
        source, in the order in which they were stored.

        Raises:
            MemoryStoreFailed: The store cannot be read.
        """
        return await self._passages().neighbors(passage, count=count)

    async def novelty(self, texts: Sequence[str]) -> float:
        """How new these texts are to the memory, 0 to 10.

        Below 3, a batch of search results is not worth another round (the Novelty Gate).
        """
        return await self._passages().novelty(as_texts(texts))

    async def wiggum(
        self,
        task: str,
        *,
        rubric: str | Path | Rubric,
        prompts: Mapping[str, str] | None = None,
        sources: Sources = (),
        draft: str | Sequence[str] | None = None,
        max_rounds: int = 3,
        max_tokens: int | None = None,
        max_cost_usd: float | None = None,
        max_seconds: float | None = None,
        revise: RevisionMode = "sections",
        revise_from: Literal["best", "last"] = "best",
        max_output_tokens: int | None = None,
        candidates: int | None = None,
        finalists: int | None = None,
        rounds: Sequence[Round] = (),
    ) -> WiggumResult:
        """Revises a draft until it meets a rubric, or the loop has another reason to stop.

        At a limit, the best draft so far is the result. No revision begins that might not be
        evaluated within the limits. A resumed run continues after the rounds that it had.

        Args:
            task: What the text is for, in every round.
            rubric: A rubric's name, the path of its file, or a `Rubric`.
            prompts: Templates that override the rubric's, by name (`section`, `judge`, …).
            sources: Texts to rely on; the evaluator sees them too. As a mapping from headings to
                texts, each belongs to the section under its heading.
            draft: The first draft; the producer writes one when left out. Of several, the checks
                choose, section by section.
            max_rounds: Most evaluations.
            max_tokens: Limit on tokens of the loop's calls, in and out.
            max_cost_usd: Limit on dollars of the loop's calls with a known price.
            max_seconds: Limit on wall-clock time.
            revise: Whether to rewrite only the criticized sections, if there are headings, or the
                whole draft.
            revise_from: The draft that a revision starts from.
            max_output_tokens: Longest text, and longest part that one call rewrites. By default the
                first draft may fill the model's context or a limit, and a revision has about twice
                the length of the part it replaces.
            candidates: How many texts to sample for a first draft and for each rewritten section.
                The rubric's checks choose among them, section by section, and never take a lower
                score than before. By default as in `[evaluation]` or the rubric; 1 if neither has
                it.
            finalists: How many drafts made of candidates the evaluator scores in a round.
            rounds: Rounds of another run's loop to continue; `rounds_from` reads them.

        Raises:
            RubricInvalid: There is no such rubric, or it or a prompt has a mistake.
            InvalidInput: A limit leaves nothing to do, the rubric's checks need missing sources, or
                the rounds are of another loop.
            ConfigurationInvalid: The rubric needs a judge, and no evaluator is configured.
            SameModel: Producer and evaluator are one model, as their servers say.
            SameFamily: They are of one family, and the settings refuse that.
            LimitReached: The limits leave no room for a first draft and its evaluation;
                `RunLimitReached` for the run's limits.
            EvaluationFailed: Not even the first draft could be evaluated.
            InferenceError: There was no first draft, or the evaluator could not be reached.
        """
        # Taken before anything is awaited, so that loops that begin together differ in key.
        call_key = self._call.key("wiggum")
        texts, headings = by_section(sources)
        drafts = None if draft is None else as_texts(draft)
        policy = LoopPolicy(max_rounds=max_rounds, revise_from=revise_from)
        limits = Limits(max_tokens=max_tokens, max_cost_usd=max_cost_usd, max_seconds=max_seconds)

        # 1. The rubric, its evaluators, and how many candidates are sampled.
        chosen = await self._choose(rubric, prompts, revises=True)
        is_judged = bool(chosen.rubric.judged)
        if is_judged:
            await self._opened.casting.seat()
        defaults = self._opened.settings.evaluation
        if candidates is None:
            candidates = defaults.candidates or chosen.rubric.candidates
        if finalists is None:
            finalists = defaults.finalists or chosen.rubric.finalists
        if candidates != 1:
            # Candidates are sampled with seeds that are derived from the run's seed.
            self._call.use(self._opened.surroundings.uses_named("seed"))

        # 2. The rounds that the loop had in earlier parts of the run.
        # The key has digests of both models, so that no loop mixes rounds of different models.
        players = self._opened.surroundings.uses_named(f"model:{PRODUCER}", f"model:{EVALUATOR}")
        call_key = "-".join([call_key, *(use.digest for use in players.values())])
        key = loop_key(
            call_key, task=task, rubric=chosen.rubric, sources=[*texts, *headings], draft=draft
        )
        before = rounds or self._rounds_before(key, chosen.rubric, drafts)

        # 3. The loop, within its limits.
        forecast = self._demand.revising(
            rounds=max(max_rounds - len(before), 0),
            has_draft=drafts is not None and not before,
            is_judged=is_judged,
        )
        with forecast, self._opened.meter.loop(limits) as meter:
            result = await run_loop(
                self._opened,
                Draft(text="", task=task, sources=texts, source_sections=headings),
                ask=self._chat,
                chosen=chosen,
                drafts=drafts,
                meter=meter,
                policy=policy,
                revise=revise,
                max_output_tokens=max_output_tokens,
                candidates=candidates,
                finalists=finalists,
                rounds=before,
                key=key,
            )
        if result.stop_reason not in FINAL_TEXT:
            self._call.keep_from_cache()  # another run, with more room, may have more rounds
        cut_by: CutBy | None = "failure" if result._may_go_on else None  # noqa: SLF001 - no promise
        # With limits of its own, it would end at the same place again.
        if cut_by is None and result.stop_reason == "budget" and limits == Limits():
            cut_by = "limit"
        self._call.note_loop(passed=result.passed, cut_by=cut_by)
        self._opened.ended_loops.add(self._call.label, result)
        return result

    async def evaluate(
        self,
        draft: str,
        *,
        rubric: str | Path | Rubric,
        prompts: Mapping[str, str] | None = None,
        task: str = "",
        sources: Sources = (),
        samples: int | None = None,
    ) -> Verdict:
        """Evaluates a draft, by this run's evaluator or panel.

        Args:
            draft: The text.
            rubric: A rubric's name, the path of its file, or a `Rubric`.
            prompts: Templates that override the rubric's; see `wiggum`.
            task: What the draft was written for.
            sources: Texts to rely on.
            samples: How often it is judged, for the mean; by default once, and again only near the
                threshold.

        Raises:
            RubricInvalid: There is no such rubric, or it or a prompt has a mistake.
            ConfigurationInvalid: The rubric needs a judge, and no evaluator is configured.
            EvaluationFailed: There was no score.
            InferenceError: The evaluator could not be reached.
        """
        texts, headings = by_section(sources)
        to_judge = Draft(text=draft, task=task, sources=texts, source_sections=headings)
        chosen = await self._choose(rubric, prompts)
        scored = await evaluate(self._opened, to_judge, chosen, ask=self._chat, samples=samples)
        return scored.verdict

    async def _chat(self, request: ChatRequest) -> Completion:
        """Makes a call within the run's limits, and notes what it used and its signs of life."""
        self._demand.note_call(request.model)
        surroundings = self._opened.surroundings
        self._call.use(surroundings.uses_of_call(request))
        request = replace(request, on_piece=self.beat, seed=self._seed_of(request))
        with self._call.pulse.doing("call"):
            reply = await self._opened.client.chat(request, caller=self._caller)
        self._call.use(surroundings.uses_of_reply(request, reply))
        if reply.cut_by is not None:
            self._call.keep_from_cache()  # another run may have room for all of it
        return reply

    def _seed_of(self, request: ChatRequest) -> int | None:
        """The request's seed; a sampled call without one gets a seed derived from the run's."""
        run_seed = self._opened.settings.seed
        if request.seed is not None or not request.temperature or run_seed is None:
            return request.seed
        material = [
            run_seed,
            self._caller.label,
            *(message.content for message in request.messages),
        ]
        # 24 bits, since every server takes so many.
        return int.from_bytes(sha256(repr(material).encode()).digest()[:3])

    def _passages(self) -> PassageLibrary:
        """The memory; notes the models that it may ask in this call."""
        self._call.keep_from_cache()  # in another run, the memory has other passages
        models = self._opened.settings.memory.models
        for model in models:
            self._demand.note_call(model)
        if models:
            self._call.use(self._opened.surroundings.uses_named("embedder", "reranker"))
        return self._opened.passages

    def _rounds_before(
        self, key: str, rubric: Rubric, drafts: Sequence[str] | None
    ) -> Sequence[Round]:
        """The rounds that a loop had in earlier parts of the run; none, with a warning, if lost."""
        if self._call.variation and self._earlier.has_final_text(key):
            return ()  # the node failed with that text, and gets other replies
        rounds = self._earlier.rounds.get(key, ())
        try:
            if isinstance(rounds, str):  # why they are lost
                raise InvalidInput(rounds, code="resume.rounds-lost")
            if rounds:
                first = drafts[0] if drafts and len(drafts) == 1 else rounds[0].draft
                check_rounds(rounds, Draft(text=first, task=""), rubric)
        except InvalidInput as error:
            self._opened.warn(
                Notice(
                    code="resume.loop-anew",
                    message=f"a loop of node '{self._call.label}' begins again: {error}",
                )
            )
            return ()
        return rounds

    async def _choose(
        self,
        rubric: str | Path | Rubric,
        prompts: Mapping[str, str] | None,
        *,
        revises: bool = False,
    ) -> ChosenRubric:
        """The rubric with its templates, which a loop that `revises` uses more of."""
        surroundings = self._opened.surroundings

        def choose() -> tuple[ChosenRubric, dict[str, Use]]:
            chosen = choose_rubric(rubric, rubrics=self._opened.settings.rubrics, prompts=prompts)
            return chosen, surroundings.uses_of_rubric(rubric, revises=revises)

        chosen, uses = await asyncio.to_thread(choose)
        self._call.use(uses)
        return chosen
