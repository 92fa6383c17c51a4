"""The suite must turn red when an output, a record or an experiment's code is altered.

Each alteration is made on a copy of the book, and the real suite is run on that copy.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from notebooks import ROOT, code_cells, experiments, read, texts
from utils.experiment import load_record, save_record

NOTEBOOK = "how_we_measure.ipynb"  # the quickest to run


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of all that the suite reads."""
    for name in ("book", "utils", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "_toc.yml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def suite(copy: Path, *arguments: str) -> str:
    """Run pytest on the copy, with the copy's utils; return what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    env = {**os.environ, "PYTHONPATH": str(copy)}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


def failed(output: str) -> set[str]:
    return set(re.findall(r"^FAILED (\S+?)(?: - .*)?$", output, re.MULTILINE))


def edit(path: Path, change) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    change(notebook)
    path.write_text(json.dumps(notebook), encoding="utf-8")


def test_altered_output_and_consistently_altered_record(copy) -> None:
    """nbval sees both: an output that no run gives, and a record that gives another output."""
    cells = code_cells(read(copy / "book" / NOTEBOOK))
    printed = next(i for i, c in enumerate(cells) if any("provenance:" in t for t in texts(c)))
    shown = next(i for i, c in enumerate(cells) if c.id == "show-all-runs")

    def alter(notebook: dict) -> None:
        output = [c for c in notebook["cells"] if c["cell_type"] == "code"][printed]["outputs"][0]
        output["text"] = "".join(output["text"]).replace("driver", "drover")

    edit(copy / "book" / NOTEBOOK, alter)
    path = copy / "book" / "records" / "stopwatches.json"
    record = load_record(path)
    record["result"]["copy"]["measure"][0] += 1  # with a checksum that fits
    save_record(record, path)
    output = suite(copy, "--nbval", f"book/{NOTEBOOK}")
    assert f"Cell {printed}" in output and f"Cell {shown}" in output
    assert re.search(r"\b2 failed", output), output[-3000:]


def test_altered_record_with_the_old_checksum(copy) -> None:
    path = copy / "book" / "records" / "stopwatches.json"
    text = path.read_text()
    path.write_text(text.replace('"seconds": ', '"seconds": 1', 1))
    assert path.read_text() != text
    output = suite(copy, "tests/test_form.py")
    assert "edited by hand or damaged" in output
    assert any("fresh_record[how_we_measure]" in name for name in failed(output))


def test_altered_experiment(copy) -> None:
    assert "stopwatches" in experiments(read(copy / "book" / NOTEBOOK))

    def alter(notebook: dict) -> None:
        cell = next(c for c in notebook["cells"] if c["id"] == "stopwatches")
        cell["source"] = "".join(cell["source"]).replace("range(10)", "range(20)")

    edit(copy / "book" / NOTEBOOK, alter)
    output = suite(copy, "tests/test_form.py", "-k", "experiment or record")
    assert "stopwatches: stale" in output
    assert failed(output) == {
        "tests/test_form.py::test_every_experiment_has_a_fresh_record[how_we_measure]"
    }


def test_altered_line_that_nbval_does_not_compare(copy) -> None:
    def alter(notebook: dict) -> None:
        text = json.dumps(notebook).replace("live on NVIDIA H100", "live on NVIDIA H900")
        notebook.update(json.loads(text))

    edit(copy / "book" / NOTEBOOK, alter)
    output = suite(copy, "tests/test_form.py", "-k", "agree_with_the_records")
    assert any("agree_with_the_records[how_we_measure]" in name for name in failed(output))


def test_orphan_record(copy) -> None:
    records = copy / "book" / "records"
    record = {**load_record(records / "stopwatches.json"), "experiment": "orphan"}
    save_record(record, records / "orphan.json")
    assert "orphan" in suite(copy, "tests/test_form.py", "-k", "used_by_exactly_one")
