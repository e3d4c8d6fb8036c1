"""Results of Inspect AI and promptfoo as rows: output, target and scores of each sample."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from harness.errors import ConfigurationInvalid, InvalidInput
from harness.log import log_warning

# Of Inspect: correct, partly, incorrect, no answer; and words for the same.
_GRADES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
# Of ZIP's methods of compression.
_ZSTD = 93
_ATTACHED = "attachment://"


def samples_in(path: Path) -> Iterator[dict[str, Any]] | None:
    """The samples of a result file or of a list of objects; None if it is another `.json` file.

    Raises:
        InvalidInput: It cannot be read, or has no samples.
        ConfigurationInvalid: It is compressed in a way that this Python needs pyarrow for.
    """
    if path.suffix.lower() == ".eval":
        return _of_archive(path)
    try:
        data = _json(path.read_bytes())
    except (OSError, ValueError):
        return None
    match data:
        case {"eval": dict(run), "version": _, **rest} if "plan" in rest or "samples" in rest:
            return _of_inspect(rest.get("samples") or [], run.get("model"), path)
        case {"results": {"results": [*results]}} | {
            "results": [{"gradingResult": _}, *_] as results
        }:
            return map(_of_promptfoo, results)
        # A list of objects, as many data sets are.
        case [{}, *_] if all(isinstance(row, dict) for row in data):
            return map(dict, data)
    return None


def _json(data: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Python writes NaN, and so does Inspect; orjson refuses it.
        return json.loads(data)


@cache
def _tell_once(message: str) -> None:
    # A command may read a file twice.
    log_warning(message, code="results.score-not-finite")


# --- Inspect ----------------------------------------------------------------------------------


def _of_archive(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.startswith("samples/")]
            start = "header.json" if "header.json" in archive.namelist() else "_journal/start.json"
            run = _json(_entry(archive, start))["eval"]
            samples = (_json(_entry(archive, name)) for name in sorted(names))
            yield from _of_inspect(samples, run.get("model"), path)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InvalidInput(
            f"it is no log of Inspect ({error}); write it again: inspect log convert --to json",
            code="results.not-inspect",
            path=path,
        ) from error


def _entry(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    # Python's library reads zstd from 3.14 on.
    if info.compress_type != _ZSTD:
        return archive.read(name)
    try:
        import pyarrow  # noqa: PLC0415 - a large, optional library
    except ImportError as error:
        raise ConfigurationInvalid(
            "logs of Inspect need pyarrow: pip install 'wiggum-harness[tune]', or write them as "
            "JSON: inspect log convert --to json",
            code="row.no-pyarrow",
        ) from error
    assert archive.fp is not None
    # Python gives no bytes of an entry that it cannot unpack.
    # A local header ends with the lengths of its name and extra field, which stand before the data.
    archive.fp.seek(info.header_offset + 26)
    archive.fp.seek(sum(struct.unpack("<HH", archive.fp.read(4))), 1)
    data = archive.fp.read(info.compress_size)
    return bytes(pyarrow.input_stream(pyarrow.py_buffer(data), compression="zstd").read())


def _of_inspect(samples: Any, model: object, path: Path) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    sample: Mapping[str, Any] | None = None
    for sample in samples:
        attachments = sample.get("attachments") or {}
        scores: dict[str, float] = {}
        reasons: dict[str, str] = {}
        for name, score in (sample.get("scores") or {}).items():
            parts = score["value"]
            for key, value in (parts if isinstance(parts, dict) else {"": parts}).items():
                if (number := _number(value)) is not None:
                    scores[f"{name}.{key}" if key else name] = number
                elif isinstance(value, float):
                    of = f"sample '{sample['id']}', epoch {sample['epoch']}"
                    _tell_once(f"{path}: {of}: its score '{name}' is {value}: it counts as missing")
            reasons[name] = score.get("explanation") or ""
        metadata = sample.get("metadata") or {}
        asked = _text(sample["input"], attachments)
        # The columns of an evaluation of ours, so that whatever reads these reads them.
        yield {
            "id": str(sample["id"]),
            "epoch": sample["epoch"],
            "inputs": {"input": asked, **metadata},
            "output": _text((sample.get("output") or {}).get("completion"), attachments),
            "target": sample.get("target"),
            "group": metadata.get("group", ""),
            "scores": scores,
            "reasons": reasons,
            "models": [{"role": "producer", "model": model}],
            "seconds": sample.get("total_time"),
        }
    if sample is None:
        raise InvalidInput(
            "it has no samples, only their sums; run Inspect with samples in its log",
            code="results.no-samples",
            path=path,
        )


def _text(value: object, attachments: Mapping[str, str]) -> str:
    """A text, or the texts of a conversation."""
    if isinstance(value, list):
        return "\n\n".join(_text(part, attachments) for part in value)
    if isinstance(value, dict):
        return _text(value.get("content", value.get("text", "")), attachments)
    text = "" if value is None else str(value)
    return attachments.get(text.removeprefix(_ATTACHED), text)


def _number(value: object) -> float | None:
    try:
        grade = _GRADES.get(value.lower()) if isinstance(value, str) else None
        number = float(value) if grade is None else grade  # type: ignore[arg-type]  # or it raises
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


# --- promptfoo --------------------------------------------------------------------------------


def _of_promptfoo(result: Mapping[str, Any]) -> dict[str, Any]:
    """A test by one of its prompts or providers."""
    grade = result.get("gradingResult") or {}
    test, number = result.get("testIdx", 0), result.get("promptIdx", 0)
    named = grade.get("namedScores") or result.get("namedScores") or {}
    parts = [part for part in grade.get("componentResults") or () if part]
    provider = result.get("provider") or {}
    return {
        "id": f"test {test} prompt {number}",
        "epoch": 1,
        "inputs": {**(result.get("vars") or {}), **(result.get("metadata") or {})},
        "output": (result.get("response") or {}).get("output"),
        "target": None,
        # The outputs of one test's prompts and providers compare.
        "group": f"test {test}",
        "scores": {
            "score": float(result.get("score") or 0),
            "passed": float(bool(result.get("success"))),
            **named,
        },
        "reasons": {"score": "; ".join(dict.fromkeys(str(p.get("reason", "")) for p in parts))},
        "models": [{"role": "producer", "model": provider.get("label") or provider.get("id")}],
        "seconds": (result.get("latencyMs") or 0) / 1000,
        "cost_usd": result.get("cost"),
    }
