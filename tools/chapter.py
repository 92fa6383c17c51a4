"""Start a chapter from tools/skeleton.ipynb: recorded, in the contents, in the tested form.

Either everything is there at the end, or nothing has changed.
"""

import argparse
import re
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOK, TOC, SKELETON = ROOT / "book", ROOT / "_toc.yml", ROOT / "tools" / "skeleton.ipynb"
RECORDS = BOOK / "records"
ROW = re.compile(r"( *- file: book/)([0-9]{2})_(\w+)\n")  # of a chapter, in _toc.yml

sys.path.insert(0, str(ROOT))  # the utils beside this file, whichever are installed


class ChapterError(Exception):
    """The chapter cannot be made; the message says what to do."""


def check(name: str) -> None:
    """Raise :class:`ChapterError` unless ``name`` can be that of a new chapter."""
    from utils.record import never_recorded

    number, experiment = name[:2], f"{name[3:]}_first"
    if not name:
        raise ChapterError("name the chapter: make chapter NAME=64_logging")
    if not re.fullmatch(r"[0-9]{2}_[a-z][a-z0-9_]{0,59}", name):
        raise ChapterError(
            f"{name!r} is no name for a chapter: write two digits, an underscore, a lower-case "
            "letter, then lower-case letters, digits and underscores, 59 at most, as in 64_logging"
        )
    rows = ROW.finditer(TOC.read_text(encoding="utf-8"))
    taken = {f"{row[2]}_{row[3]}" for row in rows} | {path.stem for path in BOOK.glob("*.ipynb")}
    if name in taken:
        raise ChapterError(f"there is a chapter {name} already: change that, or choose a new name")
    for other in sorted(taken):
        if other.startswith(f"{number}_"):
            raise ChapterError(f"the number {number} is taken by {other}: choose another number")
    if not never_recorded(RECORDS / f"{experiment}.json"):
        raise ChapterError(
            f"book/records/{experiment}.json exists, or git cannot say that it never did: work in "
            "a git clone, and choose a name that no chapter had"
        )


def placed(toc: str, name: str) -> tuple[str, str]:
    """Return the table of contents with the chapter in it, and the name of its neighbor there.

    The chapter comes after the last one with a smaller number; but before the first one with the
    same first digit, if its number is smaller than theirs and they are in one part.
    """
    rows = list(ROW.finditer(toc))
    smaller = [row for row in rows if row[2] < name[:2]]
    same = [row for row in rows if row[2][0] == name[0]]
    in_one_part = same and "caption:" not in toc[same[0].start() : same[-1].start()]
    if in_one_part and same[0] not in smaller:
        neighbor, at = same[0], same[0].start()
    elif smaller:
        neighbor, at = smaller[-1], smaller[-1].end()
    else:
        neighbor, at = rows[0], rows[0].start()
    return f"{toc[:at]}{neighbor[1]}{name}\n{toc[at:]}", f"{neighbor[2]}_{neighbor[3]}"


def write(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def make(name: str) -> str:
    """Make the chapter ``name``; return the name of its neighbor in the table of contents."""
    from tools import front
    from utils.record.recorder import record

    word, toc = name[3:], TOC.read_text(encoding="utf-8")
    before = {path: path.read_text(encoding="utf-8") for path in (TOC, *front.pages(ROOT))}
    changed, neighbor = placed(toc, name)
    text = SKELETON.read_text(encoding="utf-8").replace("NAME_first", f"{word}_first")
    text = text.replace("NUMBER", f"{name[0]}.{name[1]}")
    text = text.replace("TITLE", word.replace("_", " ").capitalize())
    try:
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder) / f"{name}.ipynb"
            write(draft, text)
            record(draft)
            write(BOOK / draft.name, draft.read_text(encoding="utf-8"))
        write(TOC, changed)
        for path, text in front.stale(ROOT).items():
            write(path, text)
    except BaseException:
        (BOOK / f"{name}.ipynb").unlink(missing_ok=True)
        for path in RECORDS.glob(f"{word}_first.json*"):
            path.unlink()
        for path, text in before.items():
            if path.read_text(encoding="utf-8") != text:
                write(path, text)
        raise
    return neighbor


def main() -> int:
    """Run the command; return its exit status."""
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
        neighbor = make(name)
    except ChapterError as error:
        print(f"chapter: {error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("chapter: interrupted; nothing was changed.", file=sys.stderr)
        return 130
    except RuntimeError as error:  # of the recorder
        print(f"chapter: {error}\nNothing was changed.", file=sys.stderr)
        return 1
    print(f"book/{name}.ipynb is made and recorded, and in _toc.yml beside {neighbor}.")
    print(
        "The README, the front and the cheat sheet list it: write its questions in book/index.md."
    )
    print("What to write where stands in it; book/contributing.md says how to go on.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
