"""A web service: models stay in memory between requests, and a client that leaves ends its run.

    pip install fastapi uvicorn
    uvicorn --app-dir examples service:app --timeout-graceful-shutdown 1
    curl localhost:8000/answers --json '{"question": "Why is the sky blue?"}'
    curl -N 'localhost:8000/answers?question=Why+is+the+sky+blue%3F'    # as it is written

Without a `harness.toml`, the demo's model answers. Each user, named by the header `x-user`, may
have `CALLS_OF_A_USER` calls until the service is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel

import harness
from harness import Limits, Metrics, NodeFailed, Pipeline, Run, RunResult

CALLS_OF_A_USER = 1_000

answers = Pipeline("answers")
metrics = Metrics()


@answers.node(models=["producer"])
async def answer(run: Run, question: str) -> str:
    return await run.chat("producer", question, max_output_tokens=100, on_cut="keep")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Opens everything once. When the server stops, runs are cancelled; they can be resumed."""
    limits = Limits(max_calls=CALLS_OF_A_USER)
    async with harness.open(tenants=limits, observers=[metrics]) as app.state.session:
        yield


app = FastAPI(title="Answers", lifespan=lifespan)
User = Annotated[str, Header(alias="x-user")]


class Question(BaseModel):
    """What is asked."""

    question: str


class Answer(BaseModel):
    """What is answered, and the run whose trace shows how."""

    answer: str
    run: str


@app.post("/answers")
async def ask(asked: Question, request: Request, user: User = "anyone") -> Answer:
    """The whole answer."""
    running = app.state.session.run(answers, question=asked.question, tenant=user)
    try:
        result = await unless_client_leaves(request, running)
    except NodeFailed as error:
        raise HTTPException(502, str(error)) from error
    if result.status == "stopped":
        is_users = result.limit == "calls"  # messages of others may name addresses
        raise HTTPException(*((429, result.stopped_by) if is_users else (503, "no model")))
    return Answer(answer=result.result, run=result.run_id)


@app.get("/answers")
async def stream(question: str, user: User = "anyone") -> StreamingResponse:
    """The run's events, as Server-Sent Events; the last is `done`, or `error`."""

    async def lines() -> AsyncIterator[str]:
        try:
            # A client that leaves ends this block, and the run with it.
            events = app.state.session.events(answers, question=question, tenant=user)
            async with events:
                async for event in events:
                    yield f"event: {event.kind}\ndata: {event.as_json()}\n\n"
        except NodeFailed as error:
            yield f"event: error\ndata: {error.code}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@app.get("/metrics")
async def page() -> Response:
    """What all runs did, for Prometheus."""
    return Response(metrics.text(), media_type=metrics.MEDIA_TYPE)


async def unless_client_leaves(
    request: Request, running: Coroutine[Any, Any, RunResult[str]]
) -> RunResult[str]:
    """The run's result; the run is cancelled when nobody is there any more to read it."""
    run = asyncio.ensure_future(running)
    try:
        while not run.done():
            await asyncio.wait([run], timeout=0.5)
            if not run.done() and await request.is_disconnected():
                raise HTTPException(499, "the client has left")
        return run.result()
    finally:
        run.cancel()
