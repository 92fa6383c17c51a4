"""The suite must turn red when an output, a record or an experiment's code is altered.

Alterations are made on a copy of the book, several at a time where none hides another; then those
parts of the real suite that must notice them, and no others, are run on that copy.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import test_form
from notebooks import BOOK, CHAPTERS, ROOT, code_cells, experiments, read, texts
from utils.record import load_record, save_record

NOTEBOOK = "how_we_measure.ipynb"  # the quickest to run


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of all that the tests named here read."""
    left_out = shutil.ignore_patterns("__pycache__", "traces")
    for name in ("book", "utils", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    for name in ("pyproject.toml", "_toc.yml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def nbval(copy: Path, page: str) -> str:
    """Run a page of the copy, with the copy's utils, and compare; return what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", page]
    env = {**os.environ, "PYTHONPATH": str(copy)}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


def failed(output: str) -> set[str]:
    return set(re.findall(r"^FAILED (.+?)(?: - .*)?$", output, re.MULTILINE))


def refusal(test: Callable, *arguments: Path) -> str:
    """What a test of test_form.py says against the copy."""
    with pytest.raises(pytest.fail.Exception) as caught:
        test(*arguments)
    return str(caught.value)


def edit(path: Path, change) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    change(notebook)
    path.write_text(json.dumps(notebook), encoding="utf-8")


def alter_outputs(copy: Path) -> tuple[int, int, int]:
    """Alter a printed line and the line that says where; return the numbers of three cells.

    They are the cell of that line, one that prints a record, and one that reads all records.
    """
    cells = code_cells(read(BOOK / NOTEBOOK))
    printed = next(i for i, c in enumerate(cells) if any("provenance:" in t for t in texts(c)))
    shown, lists_all = (
        next(i for i, c in enumerate(cells) if c.id == name) for name in ("batches", "machines")
    )

    def alter(notebook: dict) -> None:
        output = [c for c in notebook["cells"] if c["cell_type"] == "code"][printed]["outputs"][0]
        output["text"] = "".join(output["text"]).replace("driver", "drover")
        text = json.dumps(notebook).replace("measured on NVIDIA H100", "measured on NVIDIA H900")
        notebook.update(json.loads(text))

    edit(copy / "book" / NOTEBOOK, alter)
    return printed, shown, lists_all


def alter_records(records: Path) -> None:
    """Add a record of no experiment; alter one, with a checksum that fits."""
    record = load_record(records / "stopwatches_by_size.json")
    save_record({**record, "experiment": "orphan"}, records / "orphan.json")
    record["result"]["batches of measure()"][0] += 1
    save_record(record, records / "stopwatches_by_size.json")


def alter_experiment(path: Path, name: str) -> None:
    """Let the experiment ``name`` of a notebook return something else."""

    def alter(notebook: dict) -> None:
        cells = [c for c in notebook["cells"] if f"def {name}(" in "".join(c["source"])]
        source = "".join(cells[0]["source"])
        cells[0]["source"] = re.sub(r"(?m)^    return ", "    return 0 or ", source, count=1)
        assert cells[0]["source"] != source

    edit(path, alter)


def test_altered_outputs_records_and_experiments(copy, monkeypatch) -> None:
    """nbval sees an output that no run gives, and records that give another one or are damaged.

    The form sees what nbval does not: the line that says where, a record of no experiment, an
    experiment that is not what was measured, and a record that does not fit its checksum.
    """
    numbers = alter_outputs(copy)
    alter_records(copy / "book" / "records")
    changed, hurt = CHAPTERS[1], CHAPTERS[0]
    name = min(experiments(read(changed)))
    alter_experiment(copy / "book" / changed.name, name)
    path = copy / "book" / "records" / f"{min(experiments(read(hurt)))}.json"
    text = path.read_text()
    path.write_text(text.replace('"seconds": ', '"seconds": 1', 1))
    assert path.read_text() != text

    page = f"book/{NOTEBOOK}"
    assert failed(nbval(copy, page)) == {f"{page}::Cell {number}" for number in numbers}

    book = copy / "book"
    monkeypatch.setattr(test_form, "BOOK", book)
    monkeypatch.setattr(test_form, "NOTEBOOKS", sorted(book.glob("*.ipynb")))
    monkeypatch.setattr(test_form, "RECORDS", sorted((book / "records").glob("*.json")))
    assert "NVIDIA H900" in refusal(
        test_form.test_stored_outputs_agree_with_the_records, book / NOTEBOOK
    )
    used = refusal(test_form.test_every_record_is_used_by_exactly_one_experiment)
    assert re.fullmatch(r"orphan\.json: no experiment has this name.*", used)
    fresh = test_form.test_every_experiment_has_a_fresh_record
    assert f"{name}: stale" in refusal(fresh, book / changed.name)
    damaged = refusal(fresh, book / hurt.name)
    assert re.search(rf"{path.name} .*edited by hand or damaged", damaged)
