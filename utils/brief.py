"""The box "In short" that opens a chapter: rules with numbers, each checked against its source."""

import os
import re
from collections.abc import Sequence

from utils.draft import Placeholder
from utils.plotting import Table

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


def in_short(claims: dict[str, float | Sequence[float]]) -> Table:
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
    rows, wrong = [], []
    for text, given in claims.items():
        values = given if isinstance(given, Sequence) else [given]
        written = numbers_in(text)
        if len(written) != len(values):
            raise ValueError(f"{text!r} holds the numbers {written}, and {len(values)} are given")
        shown = [f"{v:,.0f}" if v >= 1000 else f"{v:.4g}" for v in values]
        open_ = any(isinstance(v, Placeholder) for v in values)
        ok = open_ or all(agrees(w, v) for w, v in zip(written, values, strict=True))
        rows.append([text, ", ".join(shown), "open" if open_ else "✓" if ok else "✗"])
        wrong += [] if ok else [f"{text!r}, but it is {', '.join(shown)}"]
    if wrong and not os.environ.get("BOOK_RECORD_TO"):
        raise ValueError(f"the box In short says {'; '.join(wrong)}")
    return Table(["In short says", "computed", "agrees"], rows)
