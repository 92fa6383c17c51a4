"""The file that keeps what an experiment measured, and every way in which it can be damaged."""

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from utils.record.missing import NOTICE, ExperimentError, NotRecorded, never_recorded
from utils.record.paths import RECORDS, ROOT

SCHEMA = 1
FIELDS = ("schema", "experiment", "needs", "code", "provenance", "seconds", "result", "ledger")
PROVENANCE = ("gpu", "gpu_count", "driver", "torch", "cuda", "cudnn", "python", "cpu", "date")


def check_json(value: Any, path: str = "result") -> None:
    """Raise :class:`ExperimentError`, naming the place, unless JSON keeps ``value`` as it is."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ExperimentError(f"{path} is {value}, which JSON cannot hold")
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise ExperimentError(f"{path} has the key {key!r}: JSON keys are strings")
            check_json(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            check_json(item, f"{path}[{i}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        kind = type(value).__name__
        raise ExperimentError(f"{path} is a {kind}: return numbers, strings, lists and dicts")


def checksum(record: dict) -> str:
    """Return ``"sha256:…"`` over all of ``record`` but its own ``checksum`` field."""
    rest = {key: value for key, value in record.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _once(pairs: list[tuple[str, Any]]) -> dict:
    """An object of JSON, whose names must differ: else a reader sees another value than Python."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"a name stands twice among {', '.join(key for key, _ in pairs)[:60]}")
    return dict(pairs)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _is_pair(entry: Any) -> bool:
    """Whether an entry of a ledger is a prediction with its measurement."""
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(key), str) for key in ("quantity", "unit", "because"))
        and all(_is_number(entry.get(key)) for key in ("predicted", "measured"))
        and entry["predicted"] > 0
    )


def _unlike_a_record(record: dict) -> list[str]:
    """The fields that hold something else than records hold there."""
    machine, ledger, count = (
        record["provenance"],
        record["ledger"],
        record["provenance"]["gpu_count"],
    )
    pairs = ledger if isinstance(ledger, list) and all(map(_is_pair, ledger)) else None
    holds = {
        "needs": isinstance(record["needs"], list),
        "code": isinstance(record["code"], str),
        "seconds": _is_number(record["seconds"]) and record["seconds"] >= 0,
        "ledger": pairs is not None
        and len({(e["quantity"], bool(e.get("later"))) for e in pairs}) == len(pairs),
        "provenance.gpu": machine["gpu"] is None or isinstance(machine["gpu"], str),
        "provenance.gpu_count": type(count) is int and 0 <= count < 1e6,
        **{f"provenance.{f}": isinstance(machine[f], str) for f in ("torch", "cpu", "date")},
    }
    return [field for field, well in holds.items() if not well]


def load_record(path: Path) -> dict:
    """Read and check the record at ``path``.

    Raises
    ------
    ExperimentError
        If the file is missing, is not complete JSON, lacks a field, or was edited by hand.
    """
    again = f"Record it again on a GPU machine, or restore it: git checkout {shown(path)}"
    try:
        text = path.read_text(encoding="utf-8")
        record = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except FileNotFoundError:
        raise ExperimentError(
            f"{shown(path)} is missing: this experiment was never recorded, or its record was "
            "removed. Run it on a machine that has what it needs: python -m utils.record"
        ) from None
    except OSError as error:
        raise ExperimentError(f"{shown(path)} cannot be read: {error.strerror}. {again}") from None
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or of absurd size
        raise ExperimentError(
            f"{shown(path)} is not complete JSON ({error}): truncated or damaged. {again}"
        ) from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ExperimentError(f"{shown(path)} does not have schema {SCHEMA}. {again}")
    lacking = [f for f in (*FIELDS, "checksum") if f not in record]
    provenance = record.get("provenance")
    if not isinstance(provenance, dict):
        lacking.append("provenance as a mapping")
    else:
        lacking += [f"provenance.{f}" for f in PROVENANCE if f not in provenance]
    if lacking:
        raise ExperimentError(f"{shown(path)} lacks {', '.join(lacking)}. {again}")
    if record["checksum"] != checksum(record):
        raise ExperimentError(
            f"{shown(path)} does not match its checksum: edited by hand or damaged. {again}"
        )
    if record["experiment"] != path.stem:
        raise ExperimentError(
            f"{shown(path)} holds the experiment {record['experiment']!r}. {again}"
        )
    odd = _unlike_a_record(record)
    if odd:
        raise ExperimentError(
            f"{shown(path)} has no sensible {', '.join(odd)}: damaged before its checksum was "
            f"made, or made by hand. {again}"
        )
    return record


def new_record(name: str, needs: list[str], code: str, seconds: float, result: Any) -> dict:
    """Return the record of what was just measured, on this machine.

    Raises
    ------
    ExperimentError
        If JSON cannot hold ``result``.
    """
    from utils import device  # which imports torch, in seconds

    check_json(result)
    return {
        "schema": SCHEMA,
        "experiment": name,
        "needs": needs,
        "code": code,
        "provenance": device.provenance(),
        "seconds": seconds,
        # Through JSON, so that live and replayed results are the same to the last type.
        "result": json.loads(json.dumps(result)),
        "ledger": [],
    }


def save_record(record: dict, path: Path) -> None:
    """Write ``record`` with its checksum to ``path``, whole or not at all."""
    record = {**record, "checksum": checksum(record)}
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    # Lists of numbers on one line: a curve reads, and diffs, as a curve.
    text = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def shown(path: Path) -> str:
    """Return ``path`` as a reader would type it from the project's root."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def where(provenance: dict) -> str:
    """Return the one-line description of a machine: GPU, torch version, date."""
    count, name = provenance["gpu_count"], provenance["gpu"] or provenance["cpu"]
    machine = f"{count} x {name}" if count > 1 else name
    return f"{machine}, torch {provenance['torch']}, {provenance['date']}"


# --- a record by name ---------------------------------------------------------------------------


def may_be_draft(path: Path) -> bool:
    """Return whether a missing record was never there, and nobody asked for live or replay."""
    return os.environ.get("BOOK_EXPERIMENTS", "auto") in ("auto", "new") and never_recorded(path)


class Recorded(NamedTuple):
    """What a reference machine measured, and which machine that was."""

    result: Any
    where: str


def recorded(name: str) -> Recorded:
    """Return the record of the experiment ``name``, of whatever chapter: for a first figure, say.

    While recording, what was just measured comes first, and what is still to be measured is a
    :class:`NotRecorded`, as is what was never recorded.

    Raises
    ------
    ExperimentError
        If the record is missing or damaged.
    """
    path, staged = RECORDS / f"{name}.json", os.environ.get("BOOK_RECORD_TO")
    if staged and (Path(staged) / path.name).exists():
        path = Path(staged) / path.name
    elif not path.exists() and (staged or may_be_draft(path)):
        return Recorded(NotRecorded(), f"{NOTICE}: {name}")
    record = load_record(path)
    return Recorded(record["result"], where(record["provenance"]))
