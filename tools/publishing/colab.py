"""Give each notebook a first cell that fetches the book, for Colab, which opens a single file.

Where the pages are published, this runs on a checkout of its own, and the result becomes the branch
``colab``, to which the pages' buttons lead: ``python tools/publishing/colab.py ADDRESS``.
"""

import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
FIRST = """\
# Colab opened this file alone: fetch the rest of the book, and install what is missing.
# For a GPU choose Runtime, Change runtime type, before you run it.
import os
import sys

!git clone --quiet --depth 1 {address} the-book
%cd the-book/book
sys.path.insert(0, os.path.dirname(os.getcwd()))  # where utils is
os.environ["PYTHONPATH"] = sys.path[0]  # for processes that cells start
!pip install --quiet {needs}"""
COLABS_OWN = ("-e", "jupyter", "ipykernel")


def needs(requirements: str) -> str:
    """Return what notebooks need, as arguments of pip, without what Colab must keep as it is."""
    lines = requirements.split("# The built pages")[0].splitlines()
    names = (line.split("#")[0].strip() for line in lines)
    return " ".join(f"'{name}'" for name in names if name and not name.startswith(COLABS_OWN))


def add_first_cells(root: Path, address: str) -> None:
    """Write the notebooks below ``root`` anew, for a repository that is at ``address``."""
    wanted = needs((root / "requirements.txt").read_text(encoding="utf-8"))
    first = FIRST.format(address=address, needs=wanted)
    for path in sorted((root / "book").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(first, id="fetch-the-book"))
        nbformat.write(notebook, path)


if __name__ == "__main__":
    add_first_cells(ROOT, sys.argv[1])
