"""Predictions beside measurements, as one compact card.

A prediction is a hit if the measurement lies within a factor of :data:`HIT` of it, either way, and
a miss otherwise. Both are kept: a miss is what there is to learn.
"""

import html
import math
from collections.abc import Sequence

from utils.draft import Placeholder

HIT = 1.25
# Colors of the page's theme, else of JupyterLab's, else ones that read on white and on black.
INK = {
    "hit": "var(--pst-color-success, var(--jp-success-color0, #1a7f4b))",
    "miss": "var(--pst-color-danger, var(--jp-error-color0, #d1495b))",
    "open": "inherit",
}
SIGN = {"hit": "✓", "miss": "✗", "open": "·"}


def format_value(value: float, unit: str) -> str:
    """Return ``value`` with three significant digits and its unit."""
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e} {unit}".strip()
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f} {unit}".strip()


def prediction(
    quantity: str, value: float, unit: str, *, because: str, later: bool = False
) -> dict[str, object]:
    """Return a prediction as records keep it, still without its measurement.

    Raises
    ------
    ValueError
        If the value is not positive and finite, or the reason is empty.
    """
    if not isinstance(value, Placeholder) and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{quantity}: predicted {value}; a ratio needs a positive number")
    if not because.strip():
        raise ValueError(f"{quantity}: a prediction without a reason is a guess")
    entry = {"quantity": quantity, "unit": unit, "predicted": value, "because": because}
    return {**entry, "later": True} if later else entry


def verdict(entry: dict) -> str:
    """Return ``"hit"``, ``"miss"``, or ``"open"`` where nothing was measured.

    That is a draft, or ``nan``: what this machine's GPU does not offer.
    """
    if isinstance(entry["measured"], Placeholder) or math.isnan(entry["measured"]):
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
            unit, measured = entry["unit"], entry["measured"]
            is_open = verdict(entry) == "open"
            ratio = "" if is_open else f" {measured / entry['predicted']:.2f}"
            row = [
                f"later: {entry['quantity']}" if entry.get("later") else entry["quantity"],
                format_value(entry["predicted"], unit),
                "not measured" if is_open else format_value(measured, unit),
                f"{SIGN[verdict(entry)]}{ratio} {verdict(entry)}",
            ]
            if self.reference:
                known = self.reference.get(entry["quantity"])
                row.append("" if known is None else format_value(known, unit))
            found.append(row)
        return found

    def __repr__(self) -> str:
        table = [self.headers(), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in table
        ]
        reasons = [f"    because {entry['because']}" for entry in self.entries]
        pairs = [text for pair in zip(lines[1:], reasons, strict=True) for text in pair]
        return "\n".join([lines[0], *pairs, *self.lines])

    def _repr_html_(self) -> str:
        # The roles keep it a table for screen readers where a narrow page lays it out as a grid.
        small = "font-size:0.85em;opacity:0.8"
        number = 'role="cell" style="text-align:right;white-space:nowrap"'
        heads = "".join(
            f'<th role="columnheader" scope="col" style="text-align:{"right" if i else "left"}">'
            f"{name}</th>"
            for i, name in enumerate(self.headers())
        )
        body = []
        for entry, row in zip(self.entries, self.rows(), strict=True):
            quantity, predicted, measured, ratio, *reference = map(html.escape, row)
            cells = [
                '<th role="rowheader" scope="row" style="text-align:left;font-weight:normal">'
                f'{quantity}<br><span style="{small}">because '
                f"{html.escape(entry['because'])}</span></th>",
                f"<td {number}>{predicted}</td><td {number}>{measured}</td>",
                f'<td {number}><b style="color:{INK[verdict(entry)]}">{ratio}</b></td>',
                *(f"<td {number}>{text}</td>" for text in reference),
            ]
            body.append(f'<tr role="row">{"".join(cells)}</tr>')
        # Each source on a line of its own: the tests compare all lines but these.
        sources = "".join(f"\n{html.escape(line)}\n<br>" for line in self.lines)
        return (
            f'<table class="prediction-card" role="table"><thead role="rowgroup"><tr role="row">'
            f'{heads}</tr></thead><tbody role="rowgroup">{"".join(body)}</tbody></table>\n'
            f'<p class="source" style="{small}">{sources.removesuffix("<br>")}</p>'
        )
