"""Tools of MCP servers: programs or addresses, started or opened when a run first needs them.

A server is shared by all nodes of a run that name it, and is closed with the run. Only this module
knows the client (extra `mcp`). A program's standard error is kept beside the run, without secrets.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from harness.errors import ConfigurationInvalid, InvalidInput, McpServerFailed, did_you_mean
from harness.inference import Image, ToolSpec
from harness.session.tools import (
    Approve,
    Tool,
    ToolFailed,
    UsableTool,
    inlined,
    tool_specs,
    usable_tool,
)
from harness.trace import RunTrace, describe, events

_CALL_S = 60.0
_CONNECT_S = 30.0
_CLOSE_S = 10.0
_KEPT_BYTES = 1_000_000  # how much is kept of the end of a server's standard error
_CLOSED = -32000  # the client's code for a connection that has ended


@dataclass(frozen=True, slots=True)
class mcp:  # noqa: N801 - read as a word of the list of tools
    """The tools of an MCP server, for `run.agent(…, tools=[mcp("uvx mcp-server-time")])`.

    Raises:
        InvalidInput: There is neither a command nor an address, or both.
    """

    command: str | Sequence[str] = ()
    """Starts the server: a text, or its words. No shell reads it."""
    _: KW_ONLY
    url: str | None = None
    """Address of a running server (streamable HTTP), in place of a command."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the command, beside `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL` and `TERM`; it
    sees no others."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    only: Sequence[str] | None = None
    """Names of the tools to offer; by default all."""
    prefix: str = ""
    """Goes before the tools' names."""
    timeout_s: float | None = None
    """Time limit of a call; by default the agent's, or else 60 s."""
    approve: Approve = False
    """Whether a person is asked before each call; see `Tool`."""

    def __post_init__(self) -> None:
        try:
            has_command = bool(self.words)
        except ValueError as error:  # a quotation without an end
            raise InvalidInput(
                f"mcp({self.command!r}): {error}", code="mcp.command-or-url"
            ) from error
        if has_command == (self.url is not None):
            raise InvalidInput(
                'mcp() takes a command or an address: mcp("uvx mcp-server-time"), or mcp(url=…)',
                code="mcp.command-or-url",
            )

    @property
    def words(self) -> list[str]:
        """Program and arguments of the command; empty for an address."""
        return shlex.split(self.command) if isinstance(self.command, str) else [*self.command]

    @property
    def name(self) -> str:
        """For people: its address, or its command."""
        return self.url or shlex.join(self.words)


ToolSource = Callable[..., object] | Tool | mcp
"""A function, a function with settings, or a server with tools."""


class McpServers:
    """The MCP servers of a run."""

    # A minute to start: `uvx` and `npx` may download the server first.
    def __init__(self, trace: RunTrace, *, start_s: float = 60.0) -> None:
        self._trace = trace
        self._start_s = start_s
        self._servers: dict[object, _McpConnection] = {}

    async def tools(
        self, sources: Sequence[ToolSource], *, timeout_s: float | None
    ) -> list[UsableTool]:
        """All tools of these sources; `timeout_s` is the limit of those without their own.

        Raises:
            InvalidInput: A function cannot be a tool, or two tools have the same name.
            ConfigurationInvalid: The extra `mcp` is not installed.
            McpServerFailed: A server cannot be used.
        """
        usable: list[UsableTool] = []
        for source in sources:
            default_s = timeout_s
            if isinstance(source, mcp):
                tools = await self._tools_of(source)
                default_s = timeout_s or _CALL_S
            else:
                tools = [usable_tool(source)]
            usable += [replace(tool, timeout_s=tool.timeout_s or default_s) for tool in tools]
        tool_specs([tool.spec for tool in usable])  # refuses two of one name
        return usable

    async def aclose(self) -> None:
        """Ends all servers."""
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))

    async def _connected(self, server: mcp) -> _McpConnection:
        """The connection to a server; a new one if there is none, or if it has ended."""
        settings = sorted({**server.env, **server.headers}.items())
        key = server.name, *settings
        previous = self._servers.get(key)
        if previous is None or previous.has_ended:
            self._servers[key] = _McpConnection(server, self._trace, self._start_s)
            if previous is not None:
                await previous.aclose()
        connection = self._servers[key]
        await connection.ready()
        return connection

    async def _tools_of(self, server: mcp) -> list[UsableTool]:
        """The tools of a server that its `only` lets through; starts it if needed."""
        listed = {tool.name: tool for tool in (await self._connected(server)).listed}
        for name in server.only or ():
            if name not in listed:
                raise InvalidInput(
                    f"the MCP server '{server.name}' has no tool '{name}', which only= names; "
                    + did_you_mean(name, listed),
                    code="mcp.tool-unknown",
                )
        return [
            UsableTool(
                spec=ToolSpec(
                    # Model servers accept no other names.
                    name=re.sub(r"[^A-Za-z0-9_-]", "_", server.prefix + name)[:64],
                    description=tool.description or "",
                    parameters=inlined(tool.input_schema),
                ),
                function=partial(self._call, server, name),
                takes_run=False,
                arguments_of=lambda values, _: dict(values),
                # No code to digest: results are reused while server and tool have these names.
                code=f"{server.name} {name}",
                timeout_s=server.timeout_s,
                approve=server.approve,
            )
            for name, tool in listed.items()
            if server.only is None or name in server.only
        ]

    async def _call(self, server: mcp, name: str, /, **arguments: object) -> object:
        connection = await self._connected(server)
        return await connection.call(name, arguments)


class _McpConnection:
    """One server, opened and closed by a task of its own."""

    def __init__(self, server: mcp, trace: RunTrace, start_s: float) -> None:
        self.listed: list[Any] = []
        self._server = server
        self._trace = trace
        self._start_s = start_s
        self._client: Any = None
        self._stderr = tempfile.TemporaryFile(  # noqa: SIM115 - closed by `_live`
            "w+", encoding="utf-8", errors="replace"
        )
        self._is_ready = asyncio.Event()
        self._is_over = asyncio.Event()
        self._failure: McpServerFailed | ConfigurationInvalid | None = None
        # The task that enters the client's scopes must also leave them. It is in no task group,
        # which would wrap the run's own errors.
        self._task = asyncio.create_task(self._live(), name=f"mcp {server.name}")

    @property
    def has_ended(self) -> bool:
        return self._task.done() or self._is_over.is_set()

    async def ready(self) -> None:
        """Waits until the server answers; raises why it cannot."""
        await self._is_ready.wait()
        if self._failure is not None:
            raise self._failure

    async def call(self, name: str, arguments: dict[str, object]) -> object:
        """The answer of a tool.

        Raises:
            ToolFailed: The tool says that it failed.
            McpServerFailed: The server has ended, or does not keep to the protocol.
        """
        from mcp import MCPError  # noqa: PLC0415 - optional

        try:
            result = await self._client.call_tool(name, arguments)
        except (MCPError, RuntimeError, ValueError, OSError) as error:
            if isinstance(error, MCPError) and error.code == _CLOSED:
                self._is_over.set()  # so that the next call starts the server again
                raise self._failed("has ended, and is started again when needed", error) from error
            raise self._failed(f"did not answer '{name}' as it must", error) from error
        answer = _answer_of(result)
        if result.is_error:
            raise ToolFailed(str(answer))
        return answer

    async def aclose(self) -> None:
        self._is_over.set()
        if not self._is_ready.is_set():
            self._task.cancel()
        await asyncio.wait([self._task], timeout=_CLOSE_S)
        self._task.cancel()

    async def _live(self) -> None:
        """Opens the connection, and closes it when it is over; notes why it cannot be used."""
        name = self._server.name
        with self._stderr:
            try:
                async with AsyncExitStack() as stack:
                    with self._trace.span(events.McpStart(f"start {name}", name)):
                        async with asyncio.timeout(self._start_s):
                            await self._open(stack)
                    self._is_ready.set()
                    await self._is_over.wait()
            except ImportError as error:
                self._failure = ConfigurationInvalid(
                    f"the client of MCP servers cannot be imported ({error}); pip install "
                    "'wiggum-harness[mcp]'",
                    code="mcp.not-installed",
                )
            except Exception as error:  # noqa: BLE001 - whatever the client or the server did
                self._failure = self._failed("cannot be used", error)
            finally:
                self._is_ready.set()
                self._save_stderr()

    async def _open(self, stack: AsyncExitStack) -> None:
        import httpx2  # noqa: PLC0415 - optional, as these
        import mcp as client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        log = logging.getLogger("mcp")
        # The client logs mistakes of servers. Without a handler, they would go to the terminal.
        if not log.hasHandlers():
            log.addHandler(logging.NullHandler())
        server = self._server
        transport: Any
        if server.url is not None:
            # No time limit on reading, since the tool's own limit ends a call.
            limits = httpx2.Timeout(_CONNECT_S, read=None)
            http = httpx2.AsyncClient(headers=dict(server.headers), timeout=limits)
            await stack.enter_async_context(http)
            transport = streamable_http_client(server.url, http_client=http)
        else:
            command, *words = server.words
            program = client.StdioServerParameters(command=command, args=words, env={**server.env})
            transport = client.stdio_client(program, errlog=self._stderr)
        self._client = await stack.enter_async_context(client.Client(transport))
        page = await self._client.list_tools()
        self.listed += page.tools
        while page.next_cursor:
            page = await self._client.list_tools(cursor=page.next_cursor)
            self.listed += page.tools

    def _failed(self, what: str, error: BaseException) -> McpServerFailed:
        """The error that the server `what`, with the reason and its last words."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        problem = "it took too long" if isinstance(error, TimeoutError) else str(describe(error))
        why = " ".join(problem.split())
        remedy = "its address" if self._server.url else "its command in a terminal"
        lines = self._end_of_stderr().strip().splitlines()
        last_words = f". It said last: {lines[-1].strip():.300}" if lines else ""
        name = self._server.name
        return McpServerFailed(
            f"the MCP server '{name}' {what} ({why:.300}); try {remedy}{last_words}", server=name
        )

    def _end_of_stderr(self) -> str:
        """The end of what the server wrote to its standard error, without secrets."""
        size = self._stderr.seek(0, 2)
        self._stderr.seek(max(0, size - _KEPT_BYTES))
        return self._trace.redactor.clean(self._stderr.read())

    def _save_stderr(self) -> None:
        if (text := self._end_of_stderr()).strip():
            path = self._trace.journal_path
            with path.with_name(f"{path.stem}.mcp.log").open("a", encoding="utf-8") as log:
                log.write(f"--- {self._server.name}\n{text}\n")


def _answer_of(result: Any) -> object:  # noqa: ANN401 - the client's, which may not be installed
    """The texts and images of a tool's result, with notes on other parts, and its value."""
    parts: list[str | Image] = []
    for block in result.content:
        match block.type:
            case "text":
                parts.append(block.text)
            case "resource" if hasattr(block.resource, "text"):
                parts.append(block.resource.text)
            case "resource_link":
                about = ": ".join(filter(None, (block.title or block.name, block.description)))
                parts.append(f"[a link to {block.uri} ({about})]")
            case "image" if (image := _image(block.data)) is not None:
                parts.append(image)
            case kind:
                parts.append(f"[{kind} of type {getattr(block, 'mime_type', None)} is left out]")
    if not parts:
        return result.structured_content
    # Many servers also write their value as a text; others only summarize it in their text.
    if not _contain(parts, result.structured_content):
        parts.append(orjson.dumps(result.structured_content).decode())
    return parts if any(isinstance(part, Image) for part in parts) else "\n".join(map(str, parts))


def _contain(parts: Sequence[str | Image], value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether the texts among the parts already contain a value, as JSON or as it is."""
    texts = [part for part in parts if isinstance(part, str)]
    values: list[object] = [*texts]
    for number, text in enumerate(texts):
        with suppress(ValueError):
            values[number] = orjson.loads(text)
    # Servers in Python wrap what is no object, and give each item of a list a text of its own. A
    # text that is JSON is wrapped as a text.
    inner = value["result"] if isinstance(value, dict) and [*value] == ["result"] else value
    readings = (*values, *texts, values, texts)
    return value is None or value in readings or inner in readings


def _image(data: str) -> Image | None:
    """An image from base64; None if models do not take its kind."""
    with suppress(InvalidInput, ValueError):
        return Image.from_bytes(base64.b64decode(data))
    return None
