"""Predictions beside measurements, as records keep them, and the section that each belongs to."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from utils.cards import format_value
from utils.record.file import load_record, where
from utils.record.paths import BOOK, RECORDS

if TYPE_CHECKING:  # matplotlib takes a second
    from utils.plotting import Table

# The last day of records that the counts include (the ledger, the front, the pictures). A chapter
# written since changes none of them; a new edition sets the day and runs the ledger again.
EDITION = "2026-11-30"


def all_predictions(folder: Path | None = None) -> list[dict]:
    """Return the predictions that records keep, with what was measured.

    The records are those in ``folder``, or the book's. Left out is what was never measured.

    Each has, besides what a record keeps of it, ``experiment`` and ``where`` (the machine).

    Raises
    ------
    utils.record.ExperimentError
        If a record is damaged; the message names its file.
    """
    found = []
    for path in sorted((folder or RECORDS).glob("*.json")):
        record = load_record(path)
        whose = {"experiment": path.stem, "where": where(record["provenance"])}
        found += [{**entry, **whose} for entry in _measured(record["ledger"])]
    return found


def counted_predictions(folder: Path | None = None) -> list[dict]:
    """Return the predictions that the book counts: first ones, of records up to :data:`EDITION`.

    The folder and the errors are those of :func:`all_predictions`.
    """
    found = all_predictions(folder)
    return [e for e in found if not e.get("later") and e["where"].split()[-1] <= EDITION]


def pairs(predictions: Iterable[dict], measured: dict[str, float]) -> list[dict]:
    """Return the entries of a ledger: each prediction with the number measured for its quantity.

    Where nothing was measured (``nan``, or a draft's), that is None.

    Raises
    ------
    ValueError
        If a prediction has no measurement, or a measurement no prediction.
    """
    predicted = {p["quantity"] for p in predictions}
    if predicted != measured.keys():
        raise ValueError(
            f"predicted but not measured: {sorted(predicted - measured.keys())}; "
            f"measured but not predicted: {sorted(measured.keys() - predicted)}. (What the record "
            "predicts counts: remove a record that was never committed, and record again.)"
        )
    numbers = {quantity: float(value) for quantity, value in measured.items()}
    numbers = {quantity: None if math.isnan(n) else n for quantity, n in numbers.items()}
    return [{**p, "measured": numbers[p["quantity"]]} for p in predictions]


def _measured(entries: Iterable[dict]) -> list[dict]:
    return [entry for entry in entries if entry["measured"] is not None]


def same(entries: list[dict], kept: list[dict]) -> bool:
    """Return whether two ledgers are equal but for the last bits of floats.

    Those may differ between mathematical libraries. What was not measured does not count.
    """

    def close(a: Any, b: Any) -> bool:
        return math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) else a == b

    entries, kept = _measured(entries), _measured(kept)
    return len(entries) == len(kept) and all(
        a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
        for a, b in zip(entries, kept, strict=True)
    )


def differing(entries: list[dict], kept: list[dict]) -> tuple[str, str]:
    """Return, in words, what is in the one ledger and not in the other, both ways."""

    def words(these: list[dict], those: list[dict]) -> str:
        only = [e for e in _measured(these) if not any(same([e], [other]) for other in those)]
        return "; ".join(
            f"{e['quantity']!r}{' (later)' if e.get('later') else ''}: predicted "
            f"{format_value(e['predicted'], e['unit'])}, measured "
            f"{format_value(e['measured'], e['unit'])}, because {e['because']}"
            for e in only
        )

    return words(entries, kept) or "no more than it", words(kept, entries) or "no more than it"


def compare(folder: Path) -> "Table | None":
    """Return the predictions of the records in ``folder``, measured by the book and there.

    None if there are none.

    Raises
    ------
    utils.record.ExperimentError
        If a record is damaged; the message names its file.
    """
    from utils.plotting import Table

    book = {(e["experiment"], e["quantity"]): e["measured"] for e in all_predictions()}
    rows = []
    for entry in all_predictions(folder):
        if not entry.get("later"):
            measured = book.get((entry["experiment"], entry["quantity"]))
            numbers = (entry["predicted"], measured, entry["measured"])
            said = ["–" if n is None else format_value(n, entry["unit"]) for n in numbers]
            rows.append([entry["experiment"], entry["quantity"], *said])
    headers = ["experiment", "quantity", "predicted", "the book", "yours"]
    return Table(headers, rows) if rows else None


_EXPERIMENT = re.compile(r"^@experiment\([^\n]*(?:\n(?!def )[^\n]*)*\ndef (\w+)\(", re.MULTILINE)
_HEADING = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)


class Section(NamedTuple):
    """A section of the book."""

    page: str  # its file without the ending, such as 15_transfers
    chapter: str  # "1.5", or its name in words if it has no number
    heading: str  # of the section, without Markdown
    link: str  # to the section from another page, in Markdown's way


def anchor(heading: str) -> str:
    """Return what follows ``#`` in a link to a heading, as MyST and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _plain(heading: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip()


def experiment_sections(book: Path | None = None) -> dict[str, Section]:
    """Return the section of each experiment, of the notebooks in ``book`` or of this book."""
    found = {}
    for path in sorted((book or BOOK).glob("*.ipynb")):
        headings: list[str] = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                text = re.sub(r"^```.*?^```", "", source, flags=re.MULTILINE | re.DOTALL)
                headings += map(_plain, _HEADING.findall(text))
            elif cell["cell_type"] == "code":
                for name in _EXPERIMENT.findall(source):
                    number = re.match(r"[\d.]+(?= · )", headings[0])
                    chapter = number[0] if number else path.stem.replace("_", " ")
                    link = f"{path.name}#{anchor(headings[-1])}"
                    found[name] = Section(path.stem, chapter, headings[-1], link)
    return found
