"""Replies to calls of nodes that have not come to their end, for when the run is resumed.

A node's output is in the journal when it has ended. What models answered it until then is here: a
resumed run asks none of that again, were it sampled or greedy. The file lies beside the journal,
and is gone when the run is finished.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import count

from harness.errors import ConfigurationInvalid, ModelFileInvalid, Notice
from harness.inference import (
    CallCache,
    ChatRequest,
    Completion,
    Endpoint,
    answer_again,
    call_key,
    completion_as_text,
    read_completion,
    reply_identity,
)
from harness.trace import RunTrace

Send = Callable[[ChatRequest], Awaitable[Completion]]

_ENDING = ".replies.sqlite"


class KeptReplies:
    """The replies of one run, by who asked for them.

    Of two calls of one node that are the same, each has its own reply, in the order they were made.
    A reply that holds a secret is not kept.

    Args:
        endpoints: What can be asked, by tag.
        resumed: Whether there may be replies of earlier parts.
        is_wanted: Whether any are to be kept.
        trace: The run's record: a reply is kept when what it took is written there.
        warn: Told why nothing can be kept.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        resumed: bool,
        is_wanted: bool,
        trace: RunTrace,
        warn: Callable[[Notice], None],
    ) -> None:
        self._path = trace.journal_path.with_suffix(_ENDING)
        self._endpoints = endpoints
        self._is_finished = False
        self._resumed = resumed
        self._trace = trace
        self._warn = warn
        self.used_again = 0
        self._taken: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._anew: Collection[str] = ()
        self._cache: CallCache | None = None
        self._was_opened = not is_wanted

    async def ask(self, request: ChatRequest, *, label: str, send: Send) -> Completion:
        """The reply to a call of a node, of an earlier part of the run if that has it.

        Args:
            request: The call.
            label: The node's call: `findings[2]`.
            send: Reaches the models.

        Raises:
            InferenceError: As `send` raises it.
        """
        cache = self._opened()
        if cache is None:
            return await send(request)
        asked_ns = self._trace.now_ns()
        call = label, call_key(request, identity=self._identity(request.model))
        # Before anything is awaited: calls that are made together are told apart by their order.
        taken = self._taken[call]
        number = next(one for one in count(1) if one not in taken)
        taken.add(number)
        key = hashlib.sha256("\n".join([*call, str(number)]).encode()).hexdigest()
        if self._resumed and label not in self._anew:
            known = read_completion(await cache.find(key))
            if known is not None:
                self.used_again += 1
                return answer_again(known, request, asked_ns=asked_ns)
        try:
            completion = await send(request)
        except BaseException:
            taken.remove(number)  # for the call that repeats this one
            raise
        # What a limit cut is asked anew, when the run goes on with a higher one.
        if completion.cut_by is None and not self._holds_a_secret(completion):
            text = completion_as_text(completion)
            try:
                # What it took first, so that nothing is kept of which the run does not know the
                # price; and at once, since a kill between the two has it asked and paid again.
                self._trace.flush()
                await cache.keep_now(key, text)
            except asyncio.CancelledError:
                cache.keep(key, text)  # paid for, whoever ended the node's call meanwhile
                raise
        return completion

    def ask_anew(self, labels: Collection[str]) -> None:
        """Forgets the replies to these calls of nodes: with them, they would only fail again."""
        self._anew = labels

    def drop(self) -> None:
        """Says that there is nothing left to resume."""
        self._is_finished = True

    async def aclose(self) -> None:
        """Closes the file, and deletes it when there is nothing left to resume."""
        if self._cache is not None:
            await self._cache.aclose()
        if self._is_finished:
            for path in self._path.parent.glob(f"{self._path.name}*"):
                path.unlink(missing_ok=True)

    def _identity(self, model: str) -> str:
        """Tells a model's replies from those of others."""
        endpoint = self._endpoints.get(model)
        try:
            return model if endpoint is None else reply_identity(endpoint)
        except ModelFileInvalid:
            return model  # its file is gone: the call will say so

    def _holds_a_secret(self, completion: Completion) -> bool:
        said = f"{completion.text}\n{completion.reasoning}"
        return self._trace.redactor.clean(said) != said

    def _opened(self) -> CallCache | None:
        if not self._was_opened:
            self._was_opened = True
            try:
                self._cache = CallCache(self._path)
            except ConfigurationInvalid as error:
                self._warn(
                    Notice(
                        code="resume.replies-not-kept",
                        message=f"a resumed run will ask again what it had asked: {error}",
                    )
                )
        return self._cache
