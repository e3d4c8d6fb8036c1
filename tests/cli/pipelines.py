"""Files that a person may have written, for commands to run."""

ECHO = """\
from harness import Pipeline

echo = Pipeline("echo")

@echo.node
def shout(task: str, times: int = 1) -> list[str]:
    return [task.upper()] * times
"""

FILLS = """\
import resource
from harness import Pipeline

fills = Pipeline("fills")

@fills.node
def fill() -> str:
    # As on a disk that is full: no file grows beyond this.
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return "x" * 3000

@fills.node
def after(fill: str) -> str:
    return fill
"""

CHATS = """\
from harness import Pipeline, Run

chats = Pipeline("chats")

@chats.node(each={"word": "words"})
async def rhyme(run: Run, word: str, words: list[str] = ["sun", "moon", "sky"]) -> str:
    return await run.chat("producer", word)
"""

ASKS = """\
import asyncio
import os
import signal
from harness import Pipeline, Run

asks = Pipeline("asks")

@asks.node
def draft(task: str) -> str:
    with open("made", "a") as file:
        file.write("draft\\n")
    return task.upper()

@asks.node
async def ship(run: Run, draft: str) -> str:
    if "SIGNAL" in os.environ:
        asyncio.get_running_loop().call_later(0.1, signal.raise_signal, int(os.environ["SIGNAL"]))
    return f"{draft} shipped" if await run.ask("Ship this?", returns=bool) else f"{draft} kept"
"""

FAILS = """\
from pathlib import Path
from harness import Pipeline

fails = Pipeline("fails")

@fails.node(each={"word": "words"})
def loud(word: str) -> str:
    with open("made", "a") as file:
        file.write(f"{word}\\n")
    if word == "b" and not Path("mended").exists():
        raise ValueError("b is bad")
    return word.upper()

@fails.node
def joined(loud: list[str]) -> str:
    return " ".join(loud)
"""

WAITS = """\
import asyncio
import os
import signal
from pathlib import Path
from harness import Pipeline

waits = Pipeline("waits")

@waits.node
def first() -> str:
    return "done"

@waits.node
async def second(first: str) -> str:
    if not Path("go").exists():
        # It does to itself what a person or a supervisor would.
        signal.raise_signal(int(os.environ.get("SIGNAL", signal.SIGCONT)))
        await asyncio.Event().wait()
    return f"{first} at last"
"""
