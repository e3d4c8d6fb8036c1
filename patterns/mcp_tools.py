"""Tools over MCP (tool servers): tools of another program, started and closed with the run.

    pip install 'wiggum-harness[mcp]'
    harness run mcp_tools
    harness run mcp_tools --set server="uvx mcp-server-time" --task "What time is it in Lima?"

Without a `server`, it starts its own small one, which offers one tool. The demo's model is too
small to call it.

**Problem.** You should not have to rewrite a tool that somebody else wrote, in another language,
with other dependencies.

**Forces.** The server is code that you start: it gets only the variables that you name, and a
person can approve its calls first (`approve=True`). Its names may clash with yours: `prefix`. Not
all of its tools belong in a prompt: `only`.

**Costs.** Those of an agent (`react_agent`), and the start of the server, once per run. Each prompt
includes the description of each tool.

**When not.** For your own function: give it to the agent as it is.

**In Perfetto.** `start …` in the node that first needs the server; later nodes find it running.
Calls of its tools look like those of any other tool, below the agent's steps.
"""

import sys
from pathlib import Path

from harness import Pipeline, Run, mcp

TASK = "How many days are between 2026-03-01 and 2026-11-27?"
PROGRAM = """\
from datetime import date
from mcp.server import MCPServer

def days_between(first: str, last: str) -> int:
    "The days from one date to another, each as YYYY-MM-DD."
    return (date.fromisoformat(last) - date.fromisoformat(first)).days

server = MCPServer("days")
server.tool()(days_between)
server.run("stdio")
"""
OWN = mcp(["python", "-c", PROGRAM], env={"PATH": str(Path(sys.executable).parent)})

mcp_tools = Pipeline("mcp-tools")


@mcp_tools.node(models=["producer"])
async def answer(run: Run, task: str = TASK, server: str = "") -> dict[str, object]:
    """The answer, why the agent stopped, and what it called."""
    tools = mcp(server) if server else OWN
    result = await run.agent("producer", task, tools=[tools], max_steps=4)
    calls = [f"{call.name} {call.arguments}: {call.text}" for call in result.calls]
    return {"text": result.text, "stopped": result.stop_reason, "calls": calls}
