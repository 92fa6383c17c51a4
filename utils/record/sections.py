"""Where in the book an experiment is, so that what was predicted leads back to its page."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from utils.record.paths import BOOK

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
