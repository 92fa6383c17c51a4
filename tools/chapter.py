"""Start a chapter from tools/skeleton.ipynb: recorded, in the contents, in the tested form.

Either everything is there at the end, or nothing has changed.
"""

import argparse
import json
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOK, TOC, SKELETON = ROOT / "book", ROOT / "_toc.yml", ROOT / "tools" / "skeleton.ipynb"
RECORDS = BOOK / "records"
ROW = re.compile(r"( *- file: book/)([0-9]{2}_\w+)\n")  # of a chapter, in _toc.yml

sys.path.insert(0, str(ROOT))  # the utils beside this file, whichever are installed


class ChapterError(RuntimeError):
    """The chapter cannot be made; the message says what to do."""


def check(name: str) -> None:
    """Raise :class:`ChapterError` unless ``name`` can be that of a new chapter."""
    from utils.record import never_recorded

    if not re.fullmatch(r"[0-9]{2}_[a-z][a-z0-9_]{0,59}", name):
        raise ChapterError(
            f"{name!r} is no name for a chapter: make chapter NAME=64_logging, with two digits, an "
            "underscore, a lower-case letter, then letters, digits and underscores, 59 at most"
        )
    for other in BOOK.glob(f"{name[:2]}_*.ipynb"):
        raise ChapterError(f"the number {name[:2]} is taken by {other.stem}: choose another number")
    if not never_recorded(RECORDS / f"{name[3:]}_first.json"):
        raise ChapterError(
            f"book/records/{name[3:]}_first.json exists, or git cannot say that it never did: work "
            "in a git clone, and choose a name that no chapter had"
        )
    if (BOOK / "keep" / f"{name[3:]}.py").exists():
        raise ChapterError(f"book/keep/{name[3:]}.py exists: choose another name")


def placed(toc: str, name: str) -> str:
    """Return the table of contents with the chapter in it, after the last with a smaller number."""
    before = max((row for row in ROW.finditer(toc) if row[2] < name), key=lambda row: row[2])
    return f"{toc[: before.end()]}{before[1]}{name}\n{toc[before.end() :]}"


def make(name: str) -> None:
    """Make the chapter ``name``, and its lines in the pages that list all chapters."""
    from tools import front
    from utils.record.recorder import record

    page, word, before = BOOK / f"{name}.ipynb", name[3:], {}
    keep = BOOK / "keep" / f"{word}.py"

    def change(path: Path, text: str) -> None:
        before[path] = path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")

    text = SKELETON.read_text(encoding="utf-8").replace("NAME_first", f"{word}_first")
    text = text.replace("NUMBER", f"{name[0]}.{name[1]}")
    text = text.replace("TITLE", word.replace("_", " ").capitalize()).replace("KEEP", word)
    kept = next(cell for cell in json.loads(text)["cells"] if cell["id"] == "keep")["source"]
    try:
        page.write_text(text, encoding="utf-8")
        keep.write_text("".join(kept) + "\n", encoding="utf-8")
        record(page)
        change(TOC, placed(TOC.read_text(encoding="utf-8"), name))
        for path, text in front.stale(ROOT).items():
            change(path, text)
    except BaseException:
        for path in [*BOOK.glob(f"{name}.*"), *RECORDS.glob(f"{word}_first.*"), keep]:
            path.unlink(missing_ok=True)
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
        raise


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Example: python tools/chapter.py 64_logging makes book/64_logging.ipynb, chapter "
        "6.4, with its first experiment, logging_first.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", default="", help="such as 64_logging")
    name = parser.parse_args().name
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which cleans up
    try:
        check(name)
        make(name)
    except (RuntimeError, KeyboardInterrupt) as error:  # of the recorder, too
        sys.exit(f"chapter: {str(error) or 'interrupted'}. Nothing was changed.")
    print(
        f"book/{name}.ipynb is made and recorded, with book/keep/{name[3:]}.py; _toc.yml, the "
        "README, the front and the cheat sheet list it.\n"
        "In book/index.md, write its questions in place of the …\n"
        "What else to write where stands in the chapter; book/contributing.md says how to go on."
    )


if __name__ == "__main__":
    main()
