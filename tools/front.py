"""Bring what repeats the chapters in line with them: the README, the front, the cheat sheet.

The lists of chapters follow _toc.yml; reading times and rules follow the notebooks; the score of
the predictions follows the records; and where the book has an address, the line of every notebook
that says what to do without ``utils`` names it. Run it after a chapter, its title or its box has
changed: ``python tools/front.py``.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the utils beside this file, whichever are installed

from utils.cards import verdict  # noqa: E402
from utils.record import ExperimentError, counted_predictions  # noqa: E402
from utils.record.notebooks import stated_minutes  # noqa: E402

ROW = re.compile(r"^\| \[(.+?)\]\((\w+)\.ipynb\) \| (.*?) \|(?: (\d+) \|)?$", re.MULTILINE)
TABLE = re.compile(r"(?<=<!-- chapters -->\n).*?(?=<!-- end -->)", re.DOTALL)
OTHERS = re.compile(r"; [^;)]*\b(?:last|rules?|where it says so)\b[^;)]*")  # where, of other rules
HOURS = re.compile(r"\d+ hours (?=of reading)")
RULE = re.compile(r"^- (.*?)(?=\n- |\n\n|\Z)", re.DOTALL | re.MULTILINE)
SCORE = re.compile(r"[\d,]+ predictions, [\d,]+ (?=came within)")
# In the text of a notebook, the end of the line that stands above its first import of utils.
GET = re.compile(r"(?<=# No module named utils\? Get )[^\\]+")
WHOLE = "the whole book, `pip install -r requirements.txt`, run it in book/."
SHEET = """\
# Cheat sheet: one rule per chapter

What to type, by task, and why. Numbers are of H100s and H200s; the chapter says of which. \
`prefetch` and `save` are codes to keep. Made for printing on two sides."""


@dataclass(frozen=True)
class Chapter:
    """What other pages say of a chapter."""

    name: str  # of its file, such as 15_transfers
    title: str  # "1.5 · Transfers: …", in Markdown
    minutes: int
    where: str  # "(on one H100)", or nothing
    rule: str  # the first of the box
    rules: tuple[str, ...] = ()  # all of them


def first_rule(box: str) -> tuple[str, str]:
    """Return where the first rule of a box was measured, and the rule.

    Raises
    ------
    ValueError
        If there is no rule.
    """
    found = re.match(r"\s*(\(.*?\))?\s*^- (.*?)(?=\n- |\n\n|\Z)", box, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"no rule: {box[:80]!r}")
    return OTHERS.sub("", found[1] or ""), " ".join(found[2].split())


def chapters(root: Path) -> dict[str, list[Chapter]]:
    """Return the book's numbered chapters, in reading order, by the part that they are in."""
    found: dict[str, list[Chapter]] = {}
    for part in yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))["parts"]:
        paths = [root / f"{entry['file']}.ipynb" for entry in part["chapters"]]
        for path in (path for path in paths if path.stem[0].isdigit()):
            notebook = nbformat.read(path, as_version=4)
            text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
            box = text.split("**In short**")[1].split("**The code to keep**")[0]
            title, minutes = (text.splitlines()[0].removeprefix("# "), stated_minutes(notebook))
            rules = (" ".join(rule.split()) for rule in RULE.findall(box))
            chapter = Chapter(path.stem, title, minutes, *first_rule(box), tuple(rules))
            found.setdefault(part["caption"], []).append(chapter)
    return found


# --- the pages -----------------------------------------------------------------------------------


def readme_list(book: dict[str, list[Chapter]]) -> str:
    """The README's list of chapters, a line for each part."""
    lines = []
    for part, chapters in book.items():
        lines += [f"- **{part}**", *(f"  - [{c.title}](book/{c.name}.ipynb)" for c in chapters)]
    return "\n".join(lines) + "\n"


def front_table(old: str, book: dict[str, list[Chapter]]) -> str:
    """The front's tables, one a part: names and questions as somebody wrote them, order and minutes
    as they are.

    A chapter that is new there gets its title, and a place for its questions.
    """
    written = {name: (label, questions) for label, name, questions, _ in ROW.findall(old)}
    lines = []
    for part, chapters in book.items():
        lines += [f"### {part}", "", "| Chapter | Questions | Minutes |", "|:--|:--|--:|"]
        for chapter in chapters:
            label, questions = written.get(chapter.name, (chapter.title, "…"))
            lines.append(f"| [{label}]({chapter.name}.ipynb) | {questions} | {chapter.minutes} |")
        lines.append("")
    return "\n".join(lines)


def hours(book: dict[str, list[Chapter]]) -> str:
    """How long it takes to read all chapters."""
    minutes = sum(chapter.minutes for chapter in itertools.chain(*book.values()))
    return f"{minutes / 60:.0f} hours "


def score(root: Path) -> str:
    """How many of the records' first predictions held; the later ones are no predictions."""
    first = counted_predictions(root / "book/records")
    hits = sum(verdict(entry) == "hit" for entry in first)
    return f"{len(first):,} predictions, {hits:,} "


def cheat_sheet(book: dict[str, list[Chapter]]) -> str:
    """The page with a call for each chapter, by task, and a rule of the chapter's box beside it."""
    calls = yaml.safe_load((ROOT / "book" / "cheat_sheet.yml").read_text(encoding="utf-8"))
    left, lines = {c.name: c for c in itertools.chain(*book.values())}, [SHEET]
    for task, rows in calls.items():
        lines.append(f"\n## {task}\n")
        for name, begins, *typed in rows:
            if name in left:
                chapter = left.pop(name)
                fitting = [r for r in chapter.rules if r.startswith((begins, f"**{begins}"))]
                lines.append(_row(chapter, typed, (fitting or [chapter.rule])[0]))
    if left:
        lines.append("\n## More\n")
        lines += [_row(chapter, [], chapter.rule) for chapter in left.values()]
    return "\n".join(lines) + "\n"


def _row(chapter: Chapter, typed: list[str], rule: str) -> str:
    """What to type, the chapter's number, and of the rule what comes up to its first number."""
    said, *more = re.split(r"(?<=[.]) +(?=[A-Z`])|(?<=[.][*]{2}) +", rule)
    while more and not re.search(r"[0-9]", re.sub("`.*?`", "", said)):
        said += f" {more.pop(0)}"
    said = re.sub(r" \([^()]{20,}\)", "", said)
    number = chapter.title.split(" · ")[0]
    code = "".join(f"`{call}` · " for call in typed)
    return f"- {code}[{number}]({chapter.name}.ipynb) · {said}"


def pages(root: Path) -> list[Path]:
    """Return the pages that repeat what the chapters say."""
    return [root / name for name in ("README.md", "book/index.md", "book/cheat_sheet.md")]


def renewed(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file that this program keeps, with the text that it should have."""
    book, said = chapters(root), score(root)
    readme, front, sheet = pages(root)
    tables = {readme: lambda _: readme_list(book), front: lambda old: front_table(old[0], book)}
    for path, table in tables.items():
        text = TABLE.sub(table, path.read_text(encoding="utf-8"))
        yield path, HOURS.sub(hours(book), SCORE.sub(said, text))
    yield sheet, cheat_sheet(book)
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    address = citation.get("repository-code")
    get = f"{address} and do as its README says." if address else WHOLE
    for path in [*sorted((root / "book").glob("*.ipynb")), root / "tools" / "skeleton.ipynb"]:
        yield path, GET.sub(get, path.read_text(encoding="utf-8"))


def stale(root: Path) -> dict[Path, str]:
    """Return the files that differ from what they should be, with the right text."""
    return {path: text for path, text in renewed(root) if path.read_text("utf-8") != text}


def main() -> int:
    """Write what has changed, and say so; return the exit status."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        changed = stale(ROOT)
    except ExperimentError as error:  # a damaged record: what it says is not counted
        print(f"front: {error}", file=sys.stderr)
        return 2
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} follows the chapters again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
