"""What repeats the chapters follows them, and a notebook that was downloaded alone says so."""

import ast
import re
import runpy
import subprocess
import sys
from unittest.mock import Mock

import pytest
import yaml
from PIL import Image

import front
from notebooks import BOOK, NOTEBOOKS, ROOT, code_cells, linked, read, replace
from utils.record import ExperimentError

BOX = """ (on one H200)

- **Send less**: 55 of
  63 GB/s.
- Wait.
"""


def test_readme_front_and_cheat_sheet_follow_the_chapters() -> None:
    stale = [path.relative_to(ROOT).as_posix() for path in front.stale(ROOT)]
    assert stale == [], f"{', '.join(stale)}: run python tools/front.py"


def test_predictions_of_a_damaged_record_are_not_counted(monkeypatch, capsys) -> None:
    damaged = Mock(side_effect=ExperimentError("a.json does not match its checksum"))
    monkeypatch.setattr(front, "counted_predictions", damaged)
    monkeypatch.setattr(sys, "argv", ["front.py"])
    assert front.main() == 2
    assert capsys.readouterr().err == "front: a.json does not match its checksum\n"


def test_first_rule_of_a_box() -> None:
    assert front.first_rule(BOX) == ("(on one H200)", "**Send less**: 55 of 63 GB/s.")
    assert front.first_rule("\n\n- One.\n\nThen") == ("", "One.")
    for others in ("the last two on one H100", "on H200s where it says so", "two in two rules"):
        assert front.first_rule(BOX.replace("H200", f"H200; {others}"))[0] == "(on one H200)"
    with pytest.raises(ValueError, match="no rule"):
        front.first_rule("\n\nNothing.")


def test_a_changed_chapter_makes_its_pages_stale(tmp_path) -> None:
    """What was written by hand stays; the book's address, once it has one, is in its notebooks."""
    address = "https://github.com/a/book"
    (linked(tmp_path) / "CITATION.cff").write_text(f"repository-code: {address}")
    changed = tmp_path / "book" / "15_transfers.ipynb"
    minutes = re.search(r"\*reads in \d+", changed.read_text("utf-8"))[0]
    far = ("large ordinary batches", "large batches, far ahead,")
    replace(changed, far, (minutes, "*reads in 77"))
    stale = {path.name: text for path, text in front.stale(tmp_path).items()}
    pages = {"index.md", "cheat_sheet.md", "skeleton.ipynb"}
    assert stale.keys() >= pages | {path.name for path in NOTEBOOKS if WHERE in path.read_text()}
    assert "batches, far ahead" in stale["cheat_sheet.md"]
    row = r"\| \[1\.5 · Transfers\]\(15_transfers\.ipynb\) \| .*pinned.* \| 77 \|"
    assert re.search(row, stale["index.md"])
    assert f"# No module named utils? Get {address} and do as" in stale[changed.name]


def test_what_the_cheat_sheet_says_to_type_is_code() -> None:
    tasks = yaml.safe_load((BOOK / "cheat_sheet.yml").read_text(encoding="utf-8"))
    for call in (call for rows in tasks.values() for _, _, *calls in rows for call in calls):
        assert re.match("python |torchrun |[A-Z_]+=", call) or ast.parse(call), call


# --- a notebook alone --------------------------------------------------------------------------

WHERE = "# No module named utils? Get the whole book, "
RUN = """
import sys
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance(colors="NoColor").run_cell(sys.stdin.read())
"""


def test_every_notebook_says_what_it_needs_above_its_first_import_of_utils() -> None:
    for path in [*NOTEBOOKS, ROOT / "tools" / "skeleton.ipynb"]:
        code = "\n" + "\n".join(cell.source for cell in code_cells(read(path)))
        first = re.search(r"^(.*)\n(?:from|import) utils\b", code, re.MULTILINE)
        assert first is None or first[1].startswith("# No module named utils? Get "), path.name


def test_a_downloaded_notebook_says_what_it_needs(tmp_path) -> None:
    """The traceback shows the line above the import; also beside another package called utils."""
    (tmp_path / "utils.py").write_text("mine = 1")
    cell = code_cells(read(BOOK / "15_transfers.ipynb"))[0].source
    command = [sys.executable, "-c", RUN]
    given = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    for before in ("", "import sys; sys.modules['utils'] = None  # as if there were none\n\n"):
        done = subprocess.run(command, input=before + cell[cell.index(WHERE) :], **given)
        assert "ModuleNotFoundError" in done.stdout and WHERE in done.stdout
        assert "pip install -r requirements.txt" in done.stdout


# --- figures -----------------------------------------------------------------------------------


def test_the_figure_of_the_predictions_shows_all_records() -> None:
    predictions = runpy.run_path(str(BOOK / "images" / "predictions.py"))
    shown = Image.open(BOOK / "images" / "predictions.png").text["Source"]
    assert shown == predictions["source"](), "run python book/images/predictions.py"
    count = sum(map(len, predictions["pairs"]().values()))
    assert f"{count} predictions, " in (ROOT / "README.md").read_text(encoding="utf-8")
