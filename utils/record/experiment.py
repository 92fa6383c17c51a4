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
Nothing falls back silently, in either direction: every mismatch is an
:class:`utils.record.ExperimentError`.

Environment
-----------
BOOK_EXPERIMENTS
    ``auto`` (default), ``live`` (never replay: raise instead), ``replay`` (never measure) or
    ``new`` (measure only what has no fresh record: ``python -m utils.record --new``).
BOOK_RECORD_TO
    Set by ``python -m utils.record``: the folder that receives the records of live runs.
"""

import copy
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from utils import device
from utils.cards import Card, prediction
from utils.gpus import GPU, lookup
from utils.record import file
from utils.record.file import load_record, save_record, shown, where
from utils.record.fingerprint import cells_of, fingerprint
from utils.record.missing import NOTICE, ExperimentError, NotRecorded, missing
from utils.record.predictions import differing, pairs, same


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
        self.path = file.RECORDS / f"{self.name}.json"
        self._was_missing = missing(self.needs)
        self._record: dict | None = None  # what the last call measured or replayed
        self._source = ""  # and the line that says which
        self._predictions: dict[tuple[str, bool], dict] = {}  # by quantity, and whether later

    def __call__(self) -> Any:
        """Run or replay the experiment; return its result.

        Which of the two it was is printed, unless there are predictions: then their card says it.
        What was never recorded, and cannot run here, is a :class:`~utils.record.NotRecorded`.

        Raises
        ------
        ExperimentError
            If it can be neither run nor replayed faithfully.
        """
        lacking = self._lacking()
        if self._is_draft():
            print(f"{NOTICE}: {self.name}, on a machine that has {' and '.join(self.needs)}")
            return NotRecorded()
        known = self._stated()  # before the record of this run takes the place of the last one
        self._record = self._run() if lacking is None else self._replay()
        if _recording():  # the page keeps this line: measured, now or before
            self._source = f"measured on {self.where}"
        elif lacking is None:
            self._source = f"live on {self.where}"
        else:
            self._source = f"replayed from {shown(self.path)}: {self.where} ({lacking})"
        if not known:
            print(self._source)
        self._stage()
        return copy.deepcopy(self._record["result"])  # the page may change its own, not the record

    def predict(
        self, quantity: str, value: float, unit: str, *, because: str, later: bool = False
    ) -> None:
        """Write down what should come out, before it is measured.

        The record keeps it from the first measurement on, so a page need not say it again, unless
        it depends on the machine at hand: then what the page says replaces what the record keeps.

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
        if later and quantity not in {entry["quantity"] for entry in self._stated()}:
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
            A number for every quantity predicted, by :meth:`predict` or in the record, in the
            predicted unit; ``nan`` for what this machine's GPU does not offer.

        Raises
        ------
        ValueError
            If a prediction has no measurement, or a measurement no prediction.
        ExperimentError
            If the experiment was not called yet, or if a replayed record kept other pairs.
        """
        if self._is_draft():
            nothing = dict.fromkeys(measured, math.nan)
            return Card(pairs(self._stated(), nothing), [f"{NOTICE}: {self.name}"])
        if self._record is None:
            raise ExperimentError(f"call {self.name}() before checking predictions against it")
        entries, kept = pairs(self._stated(), measured), self._record["ledger"]
        if not _recording() and self._lacking() and not same(entries, kept):
            here, there = differing(entries, kept)
            raise ExperimentError(
                f"{shown(self.path)} keeps other predictions or measurements than this page. The "
                f"page says {here}; the record keeps {there}. Bring them together: undo the "
                "change, or python -m utils.record"
            )
        self._record["ledger"] = entries
        self._stage()
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
    def most_gpus(self) -> int:
        """The most GPUs, of 1, 2, 4 and 8, that the machine of the result has."""
        return max(n for n in (1, 2, 4, 8) if n <= self.provenance["gpu_count"])

    def gpu(self, guess: str = "") -> GPU | None:
        """Return the datasheet figures of the GPU that the result comes from.

        Where it is not listed in :mod:`utils.gpus`, or there is none: those of ``guess``, as
        ``torch.cuda.get_device_name()`` calls it, if one is given.
        """
        return lookup(self.provenance["gpu"] or "") or lookup(guess)

    @property
    def reference(self) -> Any:
        """What the reference machine measured, beside a live result; None where there is none.

        None while replaying (the result is the reference) and while recording (it becomes it).
        """
        if _recording() or not self.path.exists() or self._lacking():
            return None
        return load_record(self.path)["result"]

    def _stated(self) -> list[dict]:
        """What is predicted: by the record, as far as the page does not say otherwise, or by it."""
        ledger = load_record(self.path)["ledger"] if self.path.exists() else []
        kept = {(entry["quantity"], bool(entry.get("later"))): entry for entry in ledger}
        return list((kept | self._predictions).values())

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
        return bool(self._lacking()) and file.may_be_draft(self.path)

    def _code(self) -> str:
        return fingerprint(self.name, cells_of(self.function))

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
        record = file.new_record(self.name, self.needs, self._code(), seconds, result)
        # Until check() measures them, and if it never does: no prediction is lost.
        return {**record, "ledger": [{**entry, "measured": None} for entry in self._stated()]}

    def _replay(self) -> dict:
        record = load_record(self.path)
        if record["code"] != self._code():
            raise ExperimentError(
                f"{shown(self.path)} is stale: the code of {self.name}, or of something it uses, "
                "is not the code that was measured. Undo the change, or record again on a machine "
                f"that has {' and '.join(self.needs)}: python -m utils.record"
            )
        return record

    def _stage(self) -> None:
        """While recording, hand the record, if it is new or has new entries, to the recorder."""
        if _recording():
            # JSON has no nan, which is what a draft lets another experiment predict.
            ledger = [e for e in self._record["ledger"] if not math.isnan(e["predicted"])]
            record = {**self._record, "ledger": ledger}
            if not self.path.exists() or record != load_record(self.path):
                save_record(record, Path(_recording()) / self.path.name)


def _recording() -> str | None:
    """The folder that receives records, if somebody records."""
    return os.environ.get("BOOK_RECORD_TO")


def experiment(*, needs: str | Sequence[str]) -> Callable[[Callable[[], Any]], Experiment]:
    """Mark a function of no arguments as an experiment.

    Parameters
    ----------
    needs : str or sequence of str
        What a machine must have to run it live: ``utils.record.missing`` says how.

    Returns
    -------
    Callable
        A decorator that makes an :class:`Experiment` of the function. The function returns numbers,
        strings, lists and dicts that JSON can hold.
    """
    needs = [needs] if isinstance(needs, str) else list(needs)
    return lambda function: Experiment(function, needs)
