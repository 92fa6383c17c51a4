"""What a reader's own machine measured, beside the book's measurements."""

import shutil
from pathlib import Path

from utils.cards import format_value
from utils.ledger import kept
from utils.paths import RECORDS
from utils.plotting import Table
from utils.records import load_record


def keep_measured(staging: Path, folder: Path) -> list[str]:
    """Move records of what was measured here to ``folder``; return their files' names.

    A run of a notebook leaves in ``staging`` also what it replayed: that is the book's own.
    """

    def measured(path: Path) -> list[object]:
        record = load_record(path) if path.exists() else {}
        return [record.get(field) for field in ("provenance", "seconds", "result")]

    names = sorted(path.name for path in staging.glob("*.json"))
    names = [name for name in names if measured(staging / name) != measured(RECORDS / name)]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.move(str(staging / name), folder / name)
    return names


def beside(folder: Path) -> Table | None:
    """Return the predictions of the records in ``folder``, measured by the book and there.

    None if there are none.

    Raises
    ------
    utils.records.ExperimentError
        If a record is damaged; the message names its file.
    """
    book = {(e["experiment"], e["quantity"]): e["measured"] for e in kept()}
    rows = []
    for entry in kept(folder):
        if not entry.get("later"):
            measured = book.get((entry["experiment"], entry["quantity"]))
            numbers = (entry["predicted"], measured, entry["measured"])
            said = ["–" if n is None else format_value(n, entry["unit"]) for n in numbers]
            rows.append([entry["experiment"], entry["quantity"], *said])
    headers = ["experiment", "quantity", "predicted", "the book", "yours"]
    return Table(headers, rows) if rows else None
