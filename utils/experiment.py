"""Live or replayed: run an experiment where its hardware is, read its record elsewhere::

    @experiment(needs="cuda")
    def copy_speed():
        ...
        return {"gb_per_s": 3012.5}

    copy_speed.predict("Copy", 4000, "GB/s", because="the datasheet's 4,800, less a sixth")
    result = copy_speed()
    copy_speed.check({"Copy": result["gb_per_s"]})

On a machine that has what the experiment needs, the call runs it. Elsewhere the call returns what
the reference machine measured, from ``book/records/copy_speed.json``. One line says which: the last
one of the card that :meth:`Experiment.check` returns or, without predictions, one that is printed.
Nothing falls back silently, in either direction: every mismatch is an :class:`ExperimentError`.

Environment
-----------
BOOK_EXPERIMENTS
    ``auto`` (default), ``live`` (never replay: raise instead), ``replay`` (never measure) or
    ``new`` (measure only what has no fresh record: ``python -m utils.record --new``).
BOOK_RECORD_TO
    Set by ``python -m utils.record``: the folder that receives the records of live runs.
"""

import copy
import hashlib
import json
import linecache
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from utils import device
from utils.cards import Card, format_value, prediction
from utils.draft import NOTICE, Placeholder, never_recorded
from utils.fingerprint import fingerprint

RECORDS = Path(__file__).resolve().parent.parent / "book" / "records"
SCHEMA = 1
FIELDS = ("schema", "experiment", "needs", "code", "provenance", "seconds", "result", "ledger")
PROVENANCE = ("gpu", "gpu_count", "driver", "torch", "cuda", "cudnn", "python", "cpu", "date")


class ExperimentError(RuntimeError):
    """An experiment can be neither run nor replayed as it stands; the message says what to do."""


# --- what an experiment may need ---------------------------------------------------------------


def _mnist_missing() -> str | None:
    from utils import data

    return data.missing_mnist()


def missing(needs: Sequence[str]) -> str | None:
    """Return why this machine lacks one of ``needs``, or None if it has them all.

    Needs are ``"cpu"`` (always there), ``"cuda"``, ``"gpus:N"``, ``"sm:X.Y"`` (compute capability
    at least X.Y), ``"mnist"`` (the real data set, not the stand-in), ``"triton"`` (the compiler
    that torch's Linux wheels bring along) and ``"linux"``.

    Raises
    ------
    ExperimentError
        If a need is none of these.
    """
    for need in needs:
        count = re.fullmatch(r"gpus:([1-9]\d*)", need)
        capability = re.fullmatch(r"sm:(\d+)\.(\d+)", need)
        if need == "cpu":
            why = None
        elif need == "mnist":
            why = _mnist_missing()
        elif need == "triton":
            why = None if find_spec("triton") else "no Triton here"
        elif need == "linux":
            why = None if sys.platform == "linux" else "not Linux here"
        elif need == "cuda" or count or capability:
            have = device.gpu_count()
            if have == 0:
                why = "no CUDA GPU here"
            elif count and have < int(count[1]):
                why = f"{have} GPU here, {count[1]} needed"
            elif capability and device.capability() < (int(capability[1]), int(capability[2])):
                why = f"needs compute capability {capability[1]}.{capability[2]}"
            else:
                why = None
        else:
            raise ExperimentError(
                f"unknown need {need!r}: use 'cpu', 'cuda', 'gpus:N', 'sm:X.Y', 'mnist', 'triton' "
                "or 'linux'"
            )
        if why:
            return why
    return None


# --- records -----------------------------------------------------------------------------------


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
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def load_record(path: Path) -> dict:
    """Read and check the record at ``path``.

    Raises
    ------
    ExperimentError
        If the file is missing, is not complete JSON, lacks a field, or was edited by hand.
    """
    again = f"Record it again on a GPU machine, or restore it: git checkout {_shown(path)}"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExperimentError(
            f"{_shown(path)} is missing: this experiment was never recorded, or its record was "
            "removed. Run it on a machine that has what it needs: python -m utils.record"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(
            f"{_shown(path)} is not complete JSON ({error}): truncated or damaged. {again}"
        ) from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ExperimentError(f"{_shown(path)} does not have schema {SCHEMA}. {again}")
    lacking = [f for f in (*FIELDS, "checksum") if f not in record]
    provenance = record.get("provenance")
    if not isinstance(provenance, dict):
        lacking.append("provenance as a mapping")
    else:
        lacking += [f"provenance.{f}" for f in PROVENANCE if f not in provenance]
    if lacking:
        raise ExperimentError(f"{_shown(path)} lacks {', '.join(lacking)}. {again}")
    if record["checksum"] != checksum(record):
        raise ExperimentError(
            f"{_shown(path)} does not match its checksum: edited by hand or damaged. {again}"
        )
    if record["experiment"] != path.stem:
        raise ExperimentError(
            f"{_shown(path)} holds the experiment {record['experiment']!r}. {again}"
        )
    return record


def save_record(record: dict, path: Path) -> None:
    """Write ``record`` with its checksum to ``path``, whole or not at all."""
    record = {**record, "checksum": checksum(record)}
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    # Lists of numbers on one line: a curve reads, and diffs, as a curve.
    text = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def _shown(path: Path) -> str:
    """``path`` as a reader would type it from the project's root."""
    root = RECORDS.parent.parent
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def where(provenance: dict) -> str:
    """Return the one-line description of a machine: GPU, torch version, date."""
    count, name = provenance["gpu_count"], provenance["gpu"] or provenance["cpu"]
    machine = f"{count} x {name}" if count > 1 else name
    return f"{machine}, torch {provenance['torch']}, {provenance['date']}"


# --- the decorator -----------------------------------------------------------------------------


class Experiment:
    """A function of no arguments whose result is measured live or replayed from its record."""

    def __init__(self, function: Callable[[], Any], needs: Sequence[str]):
        if function.__code__.co_argcount or function.__code__.co_kwonlyargcount:
            raise ExperimentError(
                f"{function.__name__} takes arguments: an experiment has none, so that its code "
                "says all that was measured"
            )
        self.function = function
        self.name = self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.needs = list(needs)
        self.path = RECORDS / f"{self.name}.json"
        self._was_missing = missing(self.needs)
        self._record: dict | None = None  # what the last call measured or replayed
        self._source = ""  # and the line that says which
        self._predictions: dict[tuple[str, bool], dict] = {}  # by quantity, and whether later

    def __call__(self) -> Any:
        """Run or replay the experiment; return its result.

        Which of the two it was is printed, unless there are predictions: then their card says it.
        What was never recorded, and cannot run here, is a :class:`utils.draft.Placeholder`.

        Raises
        ------
        ExperimentError
            If it can be neither run nor replayed faithfully.
        """
        lacking = self._lacking()
        if self._is_draft():
            print(f"{NOTICE}: {self.name}, on a machine that has {' and '.join(self.needs)}")
            return Placeholder()
        self._record = self._run() if lacking is None else self._replay()
        if os.environ.get("BOOK_RECORD_TO"):  # the page keeps this line: measured, now or before
            self._source = f"measured on {self.where}"
        elif lacking is None:
            self._source = f"live on {self.where}"
        else:
            self._source = f"replayed from {_shown(self.path)}: {self.where} ({lacking})"
        if not self._predictions:
            print(self._source)
        self._stage()
        return copy.deepcopy(self._record["result"])  # the page may change its own, not the record

    def predict(
        self, quantity: str, value: float, unit: str, *, because: str, later: bool = False
    ) -> None:
        """Write down what should come out.

        Parameters
        ----------
        quantity : str
            What is predicted; names the prediction in :meth:`check`.
        value : float
            The predicted number, positive and finite, in ``unit``.
        unit : str
            ``"GB/s"``, ``"ms"``, ``"x"`` and so on.
        because : str
            The reason, in a few words: the arithmetic, or the limit it comes from.
        later : bool
            A better prediction, found after the measurement: it stands beside the first one.

        Raises
        ------
        ValueError
            If the value is not positive and finite, or the reason is empty.
        ExperimentError
            If the experiment was called before, and the prediction does not say that it is later;
            or if there is no earlier one that it could stand beside.
        """
        key = (quantity, later)
        if later and (quantity, False) not in self._predictions:
            raise ExperimentError(f"{quantity}: later than what? There is no first prediction")
        if self._record is not None and not later and key not in self._predictions:
            raise ExperimentError(
                f"{quantity}: {self.name} was called before this prediction; predict first, or say "
                "that it came later: later=True"
            )
        self._predictions[key] = prediction(quantity, value, unit, because=because, later=later)

    def check(self, measured: dict[str, float]) -> Card:
        """Set ``measured`` beside the predictions, keep the pairs with the record, return a card.

        Parameters
        ----------
        measured : dict
            A number for every quantity predicted, in the predicted unit.

        Raises
        ------
        ValueError
            If a prediction has no measurement, or a measurement no prediction.
        ExperimentError
            If the experiment was not called yet, or see :meth:`keep`.
        """
        predicted = {quantity for quantity, _ in self._predictions}
        if predicted != measured.keys():
            raise ValueError(
                f"predicted but not measured: {sorted(predicted - measured.keys())}; "
                f"measured but not predicted: {sorted(measured.keys() - predicted)}"
            )
        if self._is_draft():
            entries = [{**p, "measured": Placeholder()} for p in self._predictions.values()]
            return Card(entries, [f"{NOTICE}: {self.name}"])
        entries = [
            {
                "quantity": p["quantity"],
                "unit": p["unit"],
                "predicted": float(p["predicted"]),
                "measured": float(measured[p["quantity"]]),
                "because": p["because"],
                **({"later": True} if p.get("later") else {}),
            }
            for p in self._predictions.values()
        ]
        self.keep(entries)
        if self.reference is None:
            return Card(entries, [self._source])
        record = load_record(self.path)
        known = {entry["quantity"]: entry["measured"] for entry in record["ledger"]}
        return Card(entries, [self._source, f"reference: {where(record['provenance'])}"], known)

    @property
    def where(self) -> str:
        """The machine, torch version and date that the result comes from."""
        return NOTICE if self._is_draft() else where(self.provenance)

    @property
    def provenance(self) -> dict:
        """Provenance of the result; before the first call, of the result to come."""
        if self._record is not None:
            return self._record["provenance"]
        live = self._lacking() is None or self._is_draft()
        return device.provenance() if live else load_record(self.path)["provenance"]

    @property
    def reference(self) -> Any:
        """What the reference machine measured, beside a live result; None where there is none.

        None while replaying (the result is the reference) and while recording (it becomes it).
        """
        if os.environ.get("BOOK_RECORD_TO") or not self.path.exists() or self._lacking():
            return None
        return load_record(self.path)["result"]

    def keep(self, entries: list[dict]) -> None:
        """Keep ledger ``entries``, predictions beside measurements, with this experiment's record.

        Raises
        ------
        ExperimentError
            If the experiment was not run yet, or if a replayed record kept other entries.
        """
        if self._record is None:
            raise ExperimentError(f"call {self.name}() before checking predictions against it")
        recording = os.environ.get("BOOK_RECORD_TO")
        if not recording and self._lacking() and not _same(entries, self._record["ledger"]):
            here, kept = _differing(entries, self._record["ledger"])
            raise ExperimentError(
                f"{_shown(self.path)} keeps other predictions or measurements than this page. The "
                f"page says {here}; the record keeps {kept}. Bring them together: undo the change, "
                "or python -m utils.record"
            )
        self._record = {**self._record, "ledger": entries}
        self._stage()

    def _lacking(self) -> str | None:
        """Why the experiment has to be replayed here; None if it runs live."""
        mode = os.environ.get("BOOK_EXPERIMENTS", "auto")
        if mode not in ("auto", "live", "new", "replay"):
            raise ExperimentError(f"BOOK_EXPERIMENTS={mode!r}: use auto, live, new or replay")
        lacking = missing(self.needs)
        if self._was_missing is None and lacking:
            raise ExperimentError(
                f"{self.name} was about to run live, but its hardware has disappeared: {lacking}. "
                "Restart the kernel; BOOK_EXPERIMENTS=replay reads the records instead"
            )
        if mode == "live" and lacking:
            raise ExperimentError(f"BOOK_EXPERIMENTS=live, but {self.name} cannot run: {lacking}")
        if mode == "replay" or (mode == "new" and not lacking and self._is_fresh()):
            return f"BOOK_EXPERIMENTS={mode}"
        return lacking

    def _is_fresh(self) -> bool:
        """Whether there is a record, and the code is still what was measured."""
        return self.path.exists() and load_record(self.path)["code"] == self._code()

    def _is_draft(self) -> bool:
        """Whether it cannot run here and was never recorded, and nobody asked for a replay."""
        return bool(self._lacking()) and _may_be_draft(self.path)

    def _code(self) -> str:
        return fingerprint(self.name, _cells(self.function))

    def _run(self) -> dict:
        start = time.perf_counter()
        try:
            result = self.function()
        except RuntimeError as error:
            if not re.search(r"NVIDIA driver|No CUDA GPUs|device.*(lost|unavailable)", str(error)):
                raise
            raise ExperimentError(
                f"{self.name} started live, then its GPU disappeared ({error}). Look at "
                "nvidia-smi; BOOK_EXPERIMENTS=replay reads the records instead"
            ) from error
        seconds = round(time.perf_counter() - start, 1)
        check_json(result)
        return {
            "schema": SCHEMA,
            "experiment": self.name,
            "needs": self.needs,
            "code": self._code(),
            "provenance": device.provenance(),
            "seconds": seconds,
            # Through JSON, so that live and replayed results are the same to the last type.
            "result": json.loads(json.dumps(result)),
            "ledger": [],
        }

    def _replay(self) -> dict:
        record = load_record(self.path)
        if record["code"] != self._code():
            raise ExperimentError(
                f"{_shown(self.path)} is stale: the code of {self.name}, or of something it uses, "
                "is not the code that was measured. Undo the change, or record again on a machine "
                f"that has {' and '.join(self.needs)}: python -m utils.record"
            )
        return record

    def _stage(self) -> None:
        """While recording, hand the record (new, or replayed with new entries) to the recorder."""
        folder = os.environ.get("BOOK_RECORD_TO")
        if folder:
            save_record(self._record, Path(folder) / self.path.name)


def _same(entries: list[dict], kept: list[dict]) -> bool:
    """Equal but for the last bits of floats, which may differ between mathematical libraries."""

    def close(a: Any, b: Any) -> bool:
        if isinstance(a, float) or isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-9)
        return a == b

    return len(entries) == len(kept) and all(
        a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
        for a, b in zip(entries, kept, strict=True)
    )


def _differing(entries: list[dict], kept: list[dict]) -> tuple[str, str]:
    """What is in the one list and not in the other, in words, both ways."""

    def words(these: list[dict], those: list[dict]) -> str:
        only = [entry for entry in these if not any(_same([entry], [other]) for other in those)]
        return "; ".join(
            f"{e['quantity']!r}{' (later)' if e.get('later') else ''}: predicted "
            f"{format_value(e['predicted'], e['unit'])}, measured "
            f"{format_value(e['measured'], e['unit'])}, because {e['because']}"
            for e in only
        )

    return words(entries, kept) or "no more than it", words(kept, entries) or "no more than it"


def _cells(function: Callable) -> list[str]:
    """Source in which ``function`` was defined: the kernel's cells so far, or its module."""
    module = sys.modules[function.__module__]
    if getattr(module, "__file__", None):
        return [Path(module.__file__).read_text(encoding="utf-8")]
    # A kernel keeps the source of every cell for tracebacks, under names in one folder. (Its
    # history would not do: nbval runs cells without storing them there.) The function's own cell
    # comes last, so that its present version counts after edits back and forth.
    own = function.__code__.co_filename
    cached = {name: entry for name, entry in linecache.cache.items() if len(entry) > 1}
    names = [n for n in cached if Path(n).parent == Path(own).parent and n != own]
    return ["".join(cached[name][2]) for name in [*names, own]]


def _may_be_draft(path: Path) -> bool:
    """Whether a missing record was never there, and nobody asked for live or replayed results."""
    return os.environ.get("BOOK_EXPERIMENTS", "auto") in ("auto", "new") and never_recorded(path)


class Recorded(NamedTuple):
    """What a reference machine measured, and which machine that was."""

    result: Any
    where: str


def recorded(name: str) -> Recorded:
    """Return the record of the experiment ``name``, of whatever chapter: for a first figure, say.

    While recording, what was just measured comes first, and what is still to be measured is a
    :class:`utils.draft.Placeholder`, as is what was never recorded.

    Raises
    ------
    ExperimentError
        If the record is missing or damaged.
    """
    path, staged = RECORDS / f"{name}.json", os.environ.get("BOOK_RECORD_TO")
    if staged and (Path(staged) / path.name).exists():
        path = Path(staged) / path.name
    elif not path.exists() and (staged or _may_be_draft(path)):
        return Recorded(Placeholder(), f"{NOTICE}: {name}")
    record = load_record(path)
    return Recorded(record["result"], where(record["provenance"]))


def experiment(*, needs: str | Sequence[str]) -> Callable[[Callable[[], Any]], Experiment]:
    """Mark a function of no arguments as an experiment.

    Parameters
    ----------
    needs : str or sequence of str
        What a machine must have to run it live: see :func:`missing`.

    Returns
    -------
    Callable
        A decorator that makes an :class:`Experiment` of the function. The function returns numbers,
        strings, lists and dicts that JSON can hold.
    """
    needs = [needs] if isinstance(needs, str) else list(needs)
    return lambda function: Experiment(function, needs)
