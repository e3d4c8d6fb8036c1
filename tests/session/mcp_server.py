"""A small MCP server that can misbehave: `python mcp_server.py [silent|noisy|lying]`.

Written by hand, since the package's own takes seconds to start and keeps to the protocol.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

DONE: dict[str, Any] = {"content": [], "structuredContent": {"n": 1}}


def tool(name: str, schema: Any = None, **more: Any) -> dict[str, Any]:
    takes = {"type": "object"} if schema is None else schema
    return {"name": name, "description": f"Does {name}.", "inputSchema": takes, **more}


TOOLS = [
    tool("add", {"type": "object", "properties": {"a": {"type": "integer"}}}),
    *map(
        tool,
        (
            "env",
            "process",
            "picture",
            "fail",
            "odd/name",
            "die",
            "hang",
            "flood",
            "garbage",
            "value",
        ),
    ),
    tool("lie", outputSchema={"type": "object", "required": ["n"]}),
]
NO_OBJECT = tool("no_object", {"type": "string"})


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def answer(name: str, arguments: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911
    match name:
        case "add":
            return text(str(arguments["a"] + 1))
        case "env":
            return text(" ".join(sorted(os.environ)))
        case "process":
            return text(str(os.getpid()))
        case "picture":
            dot = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
            return {"content": [{"type": "text", "text": "a dot:"}, dot]}
        case "fail":
            return text("the disk is gone", isError=True)
        case "value":
            return arguments["result"]
        case "flood":
            return text("x" * 10_000_000)
        case "lie":
            return text("{}", structuredContent={"m": 1})
        case "garbage":
            print("{not json", flush=True)
            return text("after it")
        case "die":
            print("out of", arguments["what"], file=sys.stderr, flush=True)
            os._exit(3)
        case "hang":
            time.sleep(60)
    return DONE


def main(how: str) -> None:
    if how == "noisy":
        print("no such licence", file=sys.stderr, flush=True)
        return
    for line in sys.stdin:
        asked = json.loads(line)
        said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked.get("id")}
        match asked["method"]:
            case _ if how == "silent" or "id" not in asked:
                continue
            case "initialize":
                version = asked["params"]["protocolVersion"]
                who = {"name": "test", "version": "1"}
                said["result"] = {
                    "protocolVersion": version,
                    "capabilities": {"tools": {}},
                    "serverInfo": who,
                }
            case "tools/list":
                # Two pages.
                at = int(asked.get("params", {}).get("cursor") or 0)
                said["result"] = {"tools": [NO_OBJECT] if how == "lying" else TOOLS[at : at + 8]}
                if at == 0:
                    said["result"]["nextCursor"] = "8"
            case "tools/call":
                said["result"] = answer(asked["params"]["name"], asked["params"]["arguments"])
            case _:
                said["error"] = {"code": -32601, "message": "no such method"}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main("".join(sys.argv[1:]))
