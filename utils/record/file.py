"""The file that keeps what an experiment measured, and every way in which it can be damaged."""

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from utils import device
from utils.record.missing import NOTICE, ExperimentError, NotRecorded, never_recorded
from utils.record.paths import RECORDS, ROOT


class Pair(Struct):
    """A prediction and what was measured, null where it was not."""

    quantity: str
    unit: str
    predicted: Annotated[float, Meta(gt=0, lt=1e300)]
    measured: Annotated[float, Meta(gt=-1e300, lt=1e300)] | None
    because: str
    later: bool = False


class Provenance(Struct):
    """The machine, and what ran on it."""

    gpu: str | None
    gpu_count: Annotated[int, Meta(ge=0, lt=10**6)]
    driver: str | None
    torch: str
    cuda: str | None
    cudnn: int | None
    python: str
    cpu: str
    date: str


class Record(Struct):
    """What a file of ``book/records`` holds."""

    schema: Literal[1]
    experiment: str
    needs: list[str]
    code: str
    provenance: Provenance
    seconds: Annotated[float, Meta(ge=0, lt=1e300)]
    result: Any
    ledger: list[Pair]
    checksum: str


FIELDS = Record.__struct_fields__[:-1]
PROVENANCE = Provenance.__struct_fields__


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


def load_record(path: Path) -> dict:
    """Read and check the record at ``path``: the fields of :class:`Record`.

    Raises
    ------
    ExperimentError
        If the file is missing, is not complete JSON, lacks a field, or was edited by hand.
    """
    try:
        text = path.read_text(encoding="utf-8")
        record = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        msgspec.convert(record, Record)
    except FileNotFoundError:
        raise ExperimentError(
            f"{shown(path)} is missing: this experiment was never recorded, or its record was "
            "removed. Run it on a machine that has what it needs: python -m utils.record"
        ) from None
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
    except msgspec.ValidationError as error:
        wrong = f"is no record: {error}"
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or of absurd size
        wrong = f"is not complete JSON ({error}): truncated or damaged"
    else:
        entries = [(entry["quantity"], entry.get("later", False)) for entry in record["ledger"]]
        if record["checksum"] != checksum(record):
            wrong = "does not match its checksum: edited by hand or damaged"
        elif record["experiment"] != path.stem:
            wrong = f"holds the experiment {record['experiment']!r}"
        elif len(set(entries)) < len(entries):
            wrong = "predicts a quantity twice"
        else:
            return record
    again = f"Record it again on a GPU machine, or restore it: git checkout {shown(path)}"
    raise ExperimentError(f"{shown(path)} {wrong}. {again}")


def new_record(name: str, needs: list[str], code: str, seconds: float, result: Any) -> dict:
    """Return the record of what was just measured, on this machine.

    Raises
    ------
    ExperimentError
        If JSON cannot hold ``result``.
    """
    check_json(result)
    # Through JSON, so that live and replayed results are the same to the last type.
    result = json.loads(json.dumps(result))
    found = (1, name, needs, code, device.provenance(), seconds, result, [])
    return dict(zip(FIELDS, found, strict=True))


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
    measured: Any  # what was predicted, by its name, as its card shows it


def recorded(name: str) -> Recorded:
    """Return the record of the experiment ``name``, of whatever chapter: for a first figure, say.

    While recording, what was just measured comes first, and what is still to be measured is a
    :class:`~utils.record.NotRecorded`, as is what was never recorded.

    Raises
    ------
    ExperimentError
        If the record is missing or damaged.
    """
    path, staged = RECORDS / f"{name}.json", os.environ.get("BOOK_RECORD_TO")
    if staged and (Path(staged) / path.name).exists():
        path = Path(staged) / path.name
    elif not path.exists() and (staged or may_be_draft(path)):
        return Recorded(NotRecorded(), f"{NOTICE}: {name}", NotRecorded())
    record = load_record(path)
    measured = {entry["quantity"]: entry["measured"] for entry in record["ledger"]}
    return Recorded(record["result"], where(record["provenance"]), measured)
