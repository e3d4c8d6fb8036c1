"""Results of Inspect AI and promptfoo as rows: output, target and scores of each sample."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from harness.errors import ConfigurationInvalid, HarnessError, InvalidInput
from harness.log import log_warning

# Inspect's grades (correct, partially correct, incorrect, no answer) and words for the same.
_GRADES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_ZSTD = 93  # the number of a compression method in ZIP files
_ATTACHMENT = "attachment://"  # before the key of a text that is stored with the sample


def samples_in(path: Path) -> Iterator[dict[str, Any]] | None:
    """The samples of a result file; None if it is another `.json` file.

    Raises:
        InvalidInput: It cannot be read, or has no samples.
        ConfigurationInvalid: It is compressed by zstd, and pyarrow is missing.
    """
    if path.suffix.lower() == ".eval":
        return _sound(_archive_samples(path), path)
    try:
        data = _json(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    match data:
        case {"eval": dict(run), "version": _, **rest} if "plan" in rest or "samples" in rest:
            samples = _inspect_samples(rest.get("samples") or [], run.get("model"), path)
            return _sound(samples, path)
        case {"results": {"results": [*results]}} | {
            "results": [{"gradingResult": _}, *_] as results
        }:
            return _sound(map(_promptfoo_sample, results), path)
    return None


def _json(data: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # orjson refuses NaN, of Inspect, and halves of surrogate pairs, which no output could hold.
        text = json.dumps(json.loads(data), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"))


def _sound(samples: Iterator[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    """The samples; raises `InvalidInput` at the first that neither program writes so."""
    try:
        yield from samples
    except HarnessError:
        raise
    except Exception as error:  # damaged archives and foreign shapes raise many classes
        raise InvalidInput(
            f"it is no log of Inspect, nor a result of promptfoo ({type(error).__name__}: {error});"
            " write it again, a log by: inspect log convert --to json",
            code="results.not-inspect",
            path=path,
        ) from error


# Once for each message, since a command may read a file twice.
@cache
def _warn_once(message: str) -> None:
    log_warning(message, code="results.score-not-finite")


# --- Inspect ----------------------------------------------------------------------------------


def _archive_samples(path: Path) -> Iterator[dict[str, Any]]:
    """The samples of an `.eval` file, which is a ZIP archive of JSON files."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/")]
        # Only a log that was finished has a header.
        start = "header.json" if "header.json" in archive.namelist() else "_journal/start.json"
        run = _json(_entry(archive, start))["eval"]
        samples = (_json(_entry(archive, name)) for name in sorted(names))
        yield from _inspect_samples(samples, run.get("model"), path)


def _entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """The unpacked bytes of a file in an archive."""
    info = archive.getinfo(name)
    # Python's own library reads zstd only from 3.14 on.
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
    # `zipfile` has no method for the packed bytes. The header of an entry ends with the lengths of
    # its name and its extra field; these two and the data follow.
    archive.fp.seek(info.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", archive.fp.read(4))
    archive.fp.seek(name_length + extra_length, os.SEEK_CUR)
    data = archive.fp.read(info.compress_size)
    return bytes(pyarrow.input_stream(pyarrow.py_buffer(data), compression="zstd").read())


def _inspect_samples(samples: Any, model: object, path: Path) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Samples with the columns of an evaluation by harness, for the commands that read these."""
    has_samples = False
    for sample in samples:
        has_samples = True
        attachments = sample.get("attachments") or {}
        scores = sample.get("scores") or {}
        metadata = sample.get("metadata") or {}
        yield {
            "id": str(sample["id"]),
            "epoch": sample["epoch"],
            "inputs": {"input": _text(sample["input"], attachments), **metadata},
            "output": _text((sample.get("output") or {}).get("completion"), attachments),
            "target": sample.get("target"),
            "group": metadata.get("group", ""),
            "scores": _inspect_scores(sample, scores, path),
            "reasons": {name: score.get("explanation") or "" for name, score in scores.items()},
            "models": [{"role": "producer", "model": model}],
            "seconds": sample.get("total_time"),
        }
    if not has_samples:
        raise InvalidInput(
            "it has no samples, only their sums; run Inspect with samples in its log",
            code="results.no-samples",
            path=path,
        )


def _inspect_scores(
    sample: Mapping[str, Any], scores: Mapping[str, Any], path: Path
) -> dict[str, float]:
    """The numbers among a sample's scores, by name; a score in parts has several: `name.part`."""
    numbers: dict[str, float] = {}
    for name, score in scores.items():
        parts = score["value"]
        for key, value in (parts if isinstance(parts, dict) else {"": parts}).items():
            number = _number(value)
            if number is not None:
                numbers[f"{name}.{key}" if key else name] = number
            elif isinstance(value, float):
                place = f"{path}: sample '{sample['id']}', epoch {sample['epoch']}"
                _warn_once(f"{place}: its score '{name}' is {value}: it counts as missing")
    return numbers


def _text(value: object, attachments: Mapping[str, str]) -> str:
    """The text of a text, or of all messages of a conversation; attachments are looked up."""
    if isinstance(value, list):
        return "\n\n".join(_text(part, attachments) for part in value)
    if isinstance(value, dict):
        return _text(value.get("content", value.get("text", "")), attachments)
    text = "" if value is None else str(value)
    return attachments.get(text.removeprefix(_ATTACHMENT), text)


def _number(value: object) -> float | None:
    """A score as a finite number, from a number, its text, or a grade; None for anything else."""
    try:
        grade = _GRADES.get(value.lower()) if isinstance(value, str) else None
        number = float(value) if grade is None else grade  # type: ignore[arg-type]  # or it raises
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


# --- promptfoo --------------------------------------------------------------------------------


def _promptfoo_sample(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of one test with one prompt and provider, as a sample."""
    grade = result.get("gradingResult") or {}
    test = result.get("testIdx", 0)
    prompt = result.get("promptIdx", 0)
    named_scores = grade.get("namedScores") or result.get("namedScores") or {}
    parts = [part for part in grade.get("componentResults") or () if part]
    provider = result.get("provider") or {}
    return {
        "id": f"test {test} prompt {prompt}",
        "epoch": 1,
        "inputs": {**(result.get("vars") or {}), **(result.get("metadata") or {})},
        "output": (result.get("response") or {}).get("output"),
        "target": None,
        # One group, since the outputs of a test by different prompts and providers are compared.
        "group": f"test {test}",
        "scores": {
            "score": float(result.get("score") or 0),
            "passed": float(bool(result.get("success"))),
            **named_scores,
        },
        "reasons": {"score": "; ".join(dict.fromkeys(str(p.get("reason", "")) for p in parts))},
        "models": [{"role": "producer", "model": provider.get("label") or provider.get("id")}],
        "seconds": (result.get("latencyMs") or 0) / 1000,
        "cost_usd": result.get("cost"),
    }
