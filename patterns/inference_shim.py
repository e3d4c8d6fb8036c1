"""A1 Inference Shim (provider abstraction): every call goes through one `chat(role, prompt)`.

    harness run inference_shim
    harness run inference_shim --role planner=TAG    # TAG from your harness.toml

**Problem.** Each server has its own client, errors and idea of usage. Calls spread over a program
cannot be counted, limited, retried or moved to another server.

**Forces.** One door must not hide differences: who answered, why the reply ended, what it cost.
`returns=Completion` gives all of it; any other type gives a checked value.

**Costs.** 1 call per role. The door itself takes about a millisecond per call.

**When not.** For one script with one server and no need of a record, that server's client is
enough.

**In Perfetto.** One track `model …` for each model that answered. A second role of the same model
adds calls to its track, not a new track.
"""

from dataclasses import dataclass
from typing import Literal

from harness import Completion, Pipeline, Run

QUESTION = "Is a token always one word? Answer in one sentence."

inference_shim = Pipeline("inference-shim")


@dataclass(frozen=True)
class Answer:
    """One reply, and what is known of its call."""

    role: str
    model: str
    text: str
    ended: str
    output_tokens: int | None


@inference_shim.node
def roles() -> list[str]:
    """Names, not servers: harness.toml or HARNESS_ENDPOINTS says who plays each."""
    return ["producer", "planner"]


@inference_shim.node(each={"role": "roles"}, models=["producer", "planner"])
async def answers(run: Run, role: str, question: str = QUESTION) -> Answer:
    """The same question to each role."""
    whole = await run.chat(
        role, question, returns=Completion, max_output_tokens=40, on_cut="keep", stop=["\n"]
    )
    tokens = whole.usage.output_tokens if whole.usage else None
    return Answer(role, whole.model_id or "unknown", whole.text, whole.finish_reason, tokens)


@inference_shim.node(models=["producer"])
async def agreed(run: Run, answers: list[Answer]) -> Literal["same", "different"]:
    """A typed reply through the same door: it is one of the two words, or an error."""
    both = "\n".join(f"- {answer.text}" for answer in answers)
    question = f"{both}\n\nDo these two say the same, or something different?"
    return await run.chat("producer", question, returns=Literal["same", "different"])


@inference_shim.node
def told(answers: list[Answer], agreed: str) -> str:
    """Who said what."""
    lines = [f"- {one.role} ({one.model}, {one.ended}): {one.text}" for one in answers]
    return "\n".join([*lines, f"They say {agreed} things." if agreed == "different" else agreed])
