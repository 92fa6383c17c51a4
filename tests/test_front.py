"""What repeats the chapters follows them, and a notebook that was downloaded alone says so."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from PIL import Image

from notebooks import BOOK, CHAPTERS, NOTEBOOKS, ROOT, code_cells, read
from utils.record import ExperimentError


def load(path: Path):
    """The module at ``path``, which is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


front = load(ROOT / "tools" / "front.py")
BOX = """ (on one H200)

- **Send less**: 55 of
  63 GB/s.
- Wait.
"""


def test_readme_front_and_cheat_sheet_follow_the_chapters() -> None:
    stale = [path.relative_to(ROOT).as_posix() for path in front.stale(ROOT)]
    assert stale == [], f"{', '.join(stale)}: run python tools/front.py"


def test_predictions_of_a_damaged_record_are_not_counted(monkeypatch, capsys) -> None:
    def damaged(root: Path) -> None:
        raise ExperimentError("fused_gelu.json does not match its checksum")

    monkeypatch.setattr(front, "kept", damaged)
    monkeypatch.setattr(sys, "argv", ["front.py"])
    assert front.main() == 2
    assert capsys.readouterr().err == "front: fused_gelu.json does not match its checksum\n"


def test_every_chapter_is_listed_with_its_questions() -> None:
    readme, index = ((p).read_text("utf-8") for p in (ROOT / "README.md", BOOK / "index.md"))
    sheet = (BOOK / "cheat_sheet.md").read_text(encoding="utf-8")
    assert len(CHAPTERS) == len(front.chapters(ROOT))
    for path in CHAPTERS:
        assert f"](book/{path.name})" in readme
        row = re.search(rf"\]\({path.name}\) \| (.*) \| \d+ \|", index)
        assert row and row[1].strip(), f"write the questions of {path.stem} in book/index.md"
        assert sheet.count(f"]({path.name}) · ") == 1


def test_first_rule_of_a_box() -> None:
    assert front.first_rule(BOX) == ("(on one H200)", "**Send less**: 55 of 63 GB/s.")
    assert front.first_rule("\n\n- One.\n\nThen") == ("", "One.")
    for others in ("the last two on one H100", "on H200s where it says so", "two in two rules"):
        assert front.first_rule(BOX.replace("H200", f"H200; {others}"))[0] == "(on one H200)"
    with pytest.raises(ValueError, match="no rule"):
        front.first_rule("\n\nNothing.")


def test_table_keeps_what_was_written_by_hand() -> None:
    old = (
        "| [1.5 · Short](15_transfers.ipynb) | How fast? | 99 |\n| [9](9_gone.ipynb) | Why? | 1 |\n"
    )
    first, new = (
        front.Chapter("GPU", name, f"{name} · Long", 30, "", "")
        for name in ("15_transfers", "16_new")
    )
    assert front.front_table(old, [first, new]).splitlines()[2:] == [
        "| [1.5 · Short](15_transfers.ipynb) | How fast? | 30 |",
        "| [16_new · Long](16_new.ipynb) | … | 30 |",
    ]


def test_a_changed_chapter_makes_its_pages_stale(tmp_path) -> None:
    copy = tmp_path / "15_transfers.ipynb"
    notebook = nbformat.read(BOOK / copy.name, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("Send from pinned memory", "Send from anywhere")
        cell.source = re.sub(r"(?<=^\*reads in )\d+", "77", cell.source, flags=re.M)
    for path in [*NOTEBOOKS, *BOOK.glob("*.md"), BOOK / "records"]:
        (tmp_path / "book").mkdir(exist_ok=True)
        (tmp_path / "book" / path.name).symlink_to(path)
    for name in ("_toc.yml", "README.md", "CITATION.cff", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "book" / copy.name).unlink()
    nbformat.write(notebook, tmp_path / "book" / copy.name)
    stale = {path.name: text for path, text in front.stale(tmp_path).items()}
    assert stale.keys() == {"index.md", "cheat_sheet.md"}
    assert "| 77 |" in stale["index.md"] and "Send from anywhere" in stale["cheat_sheet.md"]


# --- a notebook alone --------------------------------------------------------------------------


def first_cell(tmp_path, source: str) -> str:
    """What Python says of a first cell in a folder without the book."""
    bare = tmp_path / "downloaded.py"
    bare.write_text(source, encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    # -S -E: as if nothing were installed
    done = subprocess.run(
        [sys.executable, "-E", "-S", str(bare)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_downloaded_notebook_says_what_it_needs(tmp_path) -> None:
    for path in NOTEBOOKS[:2]:
        said = first_cell(tmp_path, code_cells(read(path))[0].source)
        assert len(said.splitlines()) == 1 and "Traceback" not in said
        assert "get the whole folder" in said and "pip install -r requirements.txt" in said


def test_so_it_does_beside_another_package_called_utils(tmp_path) -> None:
    (tmp_path / "utils.py").write_text("mine = 1")
    assert "get the whole folder" in first_cell(tmp_path, code_cells(read(NOTEBOOKS[0]))[0].source)


def test_the_book_is_named_once_it_has_an_address(tmp_path) -> None:
    (tmp_path / "CITATION.cff").write_text("repository-code: https://github.com/a/book")
    lines = front.guard(tmp_path)
    assert "get https://github.com/a/book" in first_cell(tmp_path, lines)
    text = front.guarded(NOTEBOOKS[0], lines)
    before, after = read(NOTEBOOKS[0]), nbformat.reads(text, as_version=4)
    assert code_cells(after)[0].source.startswith(lines)
    assert [c.get("outputs") for c in after.cells] == [c.get("outputs") for c in before.cells]
    (tmp_path / "again.ipynb").write_text(text, encoding="utf-8")
    assert front.guarded(tmp_path / "again.ipynb", front.guard(ROOT)) == NOTEBOOKS[0].read_text(
        "utf-8"
    )


# --- figures -----------------------------------------------------------------------------------


def test_the_figure_of_the_predictions_shows_all_records() -> None:
    predictions = load(BOOK / "images" / "predictions.py")
    shown = Image.open(BOOK / "images" / "predictions.png").text["Source"]
    assert shown == predictions.source(), "run python book/images/predictions.py"
    count = sum(map(len, predictions.pairs().values()))
    assert f"{count} predictions, " in (ROOT / "README.md").read_text(encoding="utf-8")
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["title"]
