"""What a page shows of its numbers: predictions beside measurements, and the box "In short".

A prediction is a hit if the measurement lies within a factor of :data:`HIT` of it, either way, and
a miss otherwise. Both are kept: a miss is what there is to learn.
"""

import html
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # matplotlib takes a second
    from utils.plotting import Table

HIT = 1.25
# Colors of the page's theme, else of JupyterLab's, else ones that read on white and on black.
INK = {
    "hit": "var(--pst-color-success, var(--jp-success-color0, #1a7f4b))",
    "miss": "var(--pst-color-danger, var(--jp-error-color0, #d1495b))",
    "open": "inherit",
}
SIGN = {"hit": "✓", "miss": "✗", "open": "·"}


def format_value(value: float, unit: str) -> str:
    """Return ``value`` with three significant digits and its unit; a dash for ``nan``."""
    if value != value:
        return "—"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e} {unit}".strip()
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f} {unit}".strip()


def aligned(rows: Sequence[Sequence[str]], pad: Sequence[Callable[[str, int], str]]) -> list[str]:
    """Return the rows as lines of columns, of which each is padded by its function."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(to(cell, n) for to, cell, n in zip(pad, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def prediction(
    quantity: str, value: float, unit: str, *, because: str, later: bool = False
) -> dict[str, object]:
    """Return a prediction as records keep it, still without its measurement, which is None.

    Raises
    ------
    ValueError
        If the value is not positive and finite, or the reason is empty.
    """
    if not value > 0 or math.isinf(value):
        raise ValueError(f"{quantity}: predicted {value}; a ratio needs a positive number")
    if not because.strip():
        raise ValueError(f"{quantity}: a prediction without a reason is a guess")
    entry = {"quantity": quantity, "unit": unit, "predicted": float(value), "measured": None}
    return {**entry, "because": because, **({"later": True} if later else {})}


def verdict(entry: dict) -> str:
    """Return ``"hit"``, ``"miss"``, or ``"open"`` where nothing was measured.

    That is a draft, or what this machine's GPU does not offer.
    """
    if entry["measured"] is None:
        return "open"
    return "hit" if 1 / HIT <= entry["measured"] / entry["predicted"] <= HIT else "miss"


class Card:
    """Predictions of an experiment and what came of them; two cards add up to one.

    Parameters
    ----------
    entries : sequence of dict
        ``quantity``, ``unit``, ``predicted``, ``measured``, ``because``, and ``later`` for a
        prediction made after the measurement.
    lines : sequence of str
        Where the measurements come from.
    reference : dict, optional
        What the reference machine measured, by quantity; shown beside a live result.
    """

    def __init__(
        self,
        entries: Sequence[dict],
        lines: Sequence[str],
        reference: dict[str, float] | None = None,
    ):
        self.entries, self.lines, self.reference = list(entries), list(lines), reference or {}

    def __add__(self, other: "Card") -> "Card":
        lines = [*self.lines, *(line for line in other.lines if line not in self.lines)]
        reference = self.reference | other.reference
        return Card([*self.entries, *other.entries], lines, reference)

    def headers(self) -> list[str]:
        """The names of the columns."""
        names = ["Prediction", "Predicted", "Measured", "Factor"]
        return [*names, "Reference"] if self.reference else names

    def rows(self) -> list[list[str]]:
        """The cells below :meth:`headers`, all but the reasons, as text."""
        found = []
        for entry in self.entries:
            quantity, unit, word = entry["quantity"], entry["unit"], verdict(entry)
            measured, factor = "not measured", ""
            if word != "open":
                measured = format_value(entry["measured"], unit)
                factor = f" {entry['measured'] / entry['predicted']:.2f}"
            known = self.reference.get(quantity)
            row = [
                f"later: {quantity}" if entry.get("later") else quantity,
                format_value(entry["predicted"], unit),
                measured,
                f"{SIGN[word]}{factor} {word}",
                "" if known is None else format_value(known, unit),
            ]
            found.append(row[: len(self.headers())])
        return found

    def __repr__(self) -> str:
        table = [self.headers(), *self.rows()]
        lines = aligned(table, [str.ljust] + [str.rjust] * (len(table[0]) - 1))
        reasons = ["", *(f"\n    because {entry['because']}" for entry in self.entries)]
        return "\n".join([*map(str.__add__, lines, reasons), *self.lines])

    def _repr_html_(self) -> str:
        # The roles keep it a table for screen readers where a narrow page lays it out as a grid.
        small = "font-size:0.85em;opacity:0.8"
        number = 'role="cell" style="text-align:right;white-space:nowrap"'
        heads = "".join(
            f'<th role="columnheader" scope="col" style="text-align:{"right" if i else "left"}">'
            f"{name}</th>"
            for i, name in enumerate(self.headers())
        )
        body = ""
        for entry, row in zip(self.entries, self.rows(), strict=True):
            quantity, predicted, measured, factor, *reference = map(html.escape, row)
            factor = f'<b style="color:{INK[verdict(entry)]}">{factor}</b>'
            cells = (predicted, measured, factor, *reference)
            numbers = "".join(f"<td {number}>{text}</td>" for text in cells)
            body += (
                '<tr role="row"><th role="rowheader" scope="row" style="text-align:left;'
                f'font-weight:normal">{quantity}<br><span style="{small}">because '
                f"{html.escape(entry['because'])}</span></th>{numbers}</tr>"
            )
        # Each source on a line of its own: the tests compare all lines but these.
        sources = "".join(f"\n{html.escape(line)}\n<br>" for line in self.lines)
        return (
            f'<table class="prediction-card" role="table"><thead role="rowgroup"><tr role="row">'
            f'{heads}</tr></thead><tbody role="rowgroup">{body}</tbody></table>\n'
            f'<p class="source" style="{small}">{sources.removesuffix("<br>")}</p>'
        )


# --- the box "In short" ---------------------------------------------------------------------------

_CODE = re.compile(r"(`+).+?\1", re.DOTALL)
_ADDRESS = re.compile(r"\]\([^)]*\)|https?://[^\s>)]+")
_MARKER = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)  # of an ordered list
_NUMBER = re.compile(
    # A number after one of these names is a part of the name.
    r"(?P<name>\b(?:PCIe|Python|PyTorch|torch|CUDA|chapter|NVLink|Figure|HBM)s?\s+[*_]*)?"
    # Not glued to a letter, as in H100 or ResNet-50, nor an exponent.
    r"(?<![\w^])(?<![^\W\d]-)"
    r"(?P<number>(?:(?<![\w)])[-−])?\d+(?:,\d{3}(?!\d))*(?:\.\d+)*)"
    r"(?!\d|(?:D|st|nd|rd|th)\b)",
    re.IGNORECASE,
)


def numbers_in(markdown: str) -> list[str]:
    """Return the numbers that ``markdown`` claims, as they are written, in order.

    Units do not belong to a number: of ``15x``, ``93%`` and ``2.5 ms`` these are 15, 93 and 2.5.
    Left out are numbers in backticks and in addresses, those that are parts of names (``float32``,
    ``H100``, ``ResNet-50``, PCIe 5, Python 3.12, chapter 4), of words (3D, 2nd) and the numbers of
    list items.
    """
    text = _CODE.sub(lambda code: re.sub(r"\d", "x", code[0]).replace("`", ""), markdown)
    text = _MARKER.sub("", _ADDRESS.sub("]", text))
    return [found["number"] for found in _NUMBER.finditer(text) if found["name"] is None]


def agrees(written: str, value: float) -> bool:
    """Return whether ``value``, rounded as ``written`` is, gives ``written``.

    Zeros at the end of a whole number may be rounding, down to two digits: 131 agrees with "130",
    but 140 does not agree with "100".
    """
    digits = written.replace(",", "").replace("−", "-")
    whole, _, decimals = digits.lstrip("-").partition(".")
    zeros = len(whole) - len(whole.rstrip("0"))
    last = -len(decimals) if decimals else min(zeros, max(len(whole) - 2, 0))
    return abs(value - float(digits)) <= 0.5 * 10**last * (1 + 1e-9)


def in_short(claims: dict[str, float | Sequence[float]]) -> "Table":
    """Check every number of the box against what was measured, and show both.

    Parameters
    ----------
    claims : dict
        Pieces of the box's text that hold numbers, ``"55 of the 63 GB/s"``, each with its number or
        numbers as computed from a record or result, ``(speed, limit)``.

    Raises
    ------
    ValueError
        If a number is not what is written, naming both; or if a piece does not hold as many numbers
        as it is given. While recording, the table shows what differs instead: the measurements are
        new then, and the box has to follow.
    """
    from utils.plotting import Table

    rows, wrong = [], []
    for text, given in claims.items():
        values = given if isinstance(given, Sequence) else [given]
        written = numbers_in(text)
        if len(written) != len(values):
            raise ValueError(f"{text!r} holds the numbers {written}, and {len(values)} are given")
        shown = [f"{v:,.0f}" if v >= 1000 else f"{v:.4g}" for v in values]
        ok = all(agrees(w, v) for w, v in zip(written, values, strict=True))
        rows.append([text, ", ".join(shown), "open" if "—" in shown else "✓" if ok else "✗"])
        wrong += [] if ok else [f"{text!r}, but it is {', '.join(shown)}"]
    if wrong and not os.environ.get("BOOK_RECORD_TO"):
        raise ValueError(f"the box In short says {'; '.join(wrong)}")
    return Table(["In short says", "computed", "agrees"], rows)
