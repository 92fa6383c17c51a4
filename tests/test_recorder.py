"""The recorder: all or nothing, and never on the wrong machine by accident."""

import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from jupyter_client.provisioning import local_provisioner
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import kernels
from utils.record import load_record, recorder
from utils.record.missing import NOTICE

METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
CELLS = [
    "from utils.record import experiment, recorded\nprint(recorded('recorded_here'))",
    '@experiment(needs="cpu")\ndef recorded_here():\n    return {"x": 3.0}',
    'recorded_here.predict("Copies", 2, "ms", because="planted")\nresult = recorded_here()',
    'recorded_here.check({"Copies": result["x"]})',
]
# What an experiment and its profile leave for the recorder, as to names.
STAGED = """
import os, pathlib
staging = pathlib.Path(os.environ["BOOK_RECORD_TO"])
(staging / "additions.json.gz").write_bytes(b"a trace")
(staging / "additions.json").write_text("a record")
"""
# What only nbformat.validate() refuses: a cell's source is a number.
INVALID = """{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code",
"id": "a", "metadata": {}, "source": 5, "outputs": [], "execution_count": null}]}"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A book of no notebooks, on a machine without a GPU."""
    (tmp_path / "records").mkdir()
    monkeypatch.delenv("BOOK_EXPERIMENTS", raising=False)
    monkeypatch.setattr(recorder, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(recorder, "TRACES", tmp_path / "traces")
    monkeypatch.setattr(recorder, "BOOK", tmp_path)
    monkeypatch.setattr(recorder, "gpu_count", lambda: 0)
    return tmp_path


@pytest.fixture
def forked_kernels(monkeypatch) -> None:
    """Kernels that have torch imported when they start; one test starts Jupyter's own."""
    if not shutil.which("nvidia-smi"):  # CUDA does not survive a fork
        monkeypatch.setattr(local_provisioner, "launch_kernel", kernels.launch)


forked = pytest.mark.usefixtures("forked_kernels")


def write(folder: Path, *sources: str) -> Path:
    cells = [new_markdown_cell("# Title"), *(new_code_cell(s) for s in sources)]
    path = folder / "chapter.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata=METADATA), path)
    return path


def left(folder: Path) -> list[str]:
    """The names of the records and traces that were written."""
    return sorted(p.name for kind in ("records", "traces") for p in (folder / kind).glob("*"))


def test_writes_records_and_outputs_and_no_timing(folder, capsys, monkeypatch) -> None:
    """A figure in the first cell is drawn from records by name: it runs again after the last."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    names = "os.environ['PYTHONPATH'], os.environ['BOOK_EXPERIMENTS']"
    tells = f"import os\nprint(os.getcwd(), {names})"
    later = "with open('ran', 'a') as file:\n    print(recorded('recorded_here').where, file=file)"
    path = write(folder, *CELLS, tells, later)
    assert recorder.main([str(path), "--allow-cpu", "--new"]) == 0
    said = capsys.readouterr()
    assert "chapter.ipynb: 1 records" in said.out and "draft" not in said.err
    assert len((folder / "ran").read_text("utf-8").splitlines()) == 1, "only the first runs again"
    record = load_record(folder / "records" / "recorded_here.json")
    assert record["result"] == {"x": 3.0} and record["ledger"][0]["measured"] == 3.0
    notebook = nbformat.read(path, 4)
    assert "Recorded(result={'x': 3.0}" in notebook.cells[1].outputs[0].text
    assert "measured on " in notebook.cells[4].outputs[0].data["text/plain"]
    there = f"{folder} {recorder.ROOT}{os.pathsep}/mine new\n"
    assert notebook.cells[5].outputs[0].text == there, "in its folder, and it knows the project"
    assert [c.execution_count for c in notebook.cells[1:]] == [1, 2, 3, 4, 5, 6]
    assert all("execution" not in c.metadata for c in notebook.cells)
    assert notebook.metadata == METADATA, "no trace of this machine's Python"


@forked
def test_failing_cell_changes_nothing_and_is_named(folder, capsys) -> None:
    fails = "print('so far')\ndef fail():\n    raise ValueError('planted')\nfail()"
    path = write(folder, "1", "2", STAGED, fails)
    before = path.read_text()
    assert recorder.main([str(path), "--allow-cpu"]) == 1
    assert path.read_text() == before and left(folder) == []
    err = capsys.readouterr().err
    said = err[err.index("record: chapter.ipynb") :].splitlines()
    assert re.fullmatch(r".*: code cell 4 \(id .*\) failed: ValueError: planted", said[0])
    assert said[1].strip() == "fail()" and len(said) <= 4 and "Nothing of it was changed" in err


@forked
def test_going_on_after_a_failing_cell_writes_what_there_is(folder, capsys) -> None:
    first = "import os\nassert 'BOOK_EXPERIMENTS' not in os.environ"
    path = write(folder, first, "raise ValueError('planted')", STAGED, "print('the rest')")
    assert recorder.main([str(path), "--allow-cpu", "--keep-going"]) == 1
    err = capsys.readouterr().err
    assert "code cell 2" in err and "code cell 1" not in err
    assert left(folder) == ["additions.json", "additions.json.gz"]
    assert nbformat.read(path, 4).cells[-1].outputs[0].text == "the rest\n"


@forked
@pytest.mark.parametrize("says", ["timed out", "died", "interrupted"])
def test_what_was_measured_before_the_kernel_was_lost_is_kept_on_demand(
    folder, monkeypatch, capsys, says
) -> None:
    ends = {"timed out": "import time; time.sleep(60)", "died": "import os; os._exit(1)"}
    last = ends.get(says, "# somebody ends the run")
    execute = recorder.NotebookClient.execute_cell

    def ended(self, cell, *arguments, **options) -> object:
        if says == "interrupted" and cell.source == last:
            raise KeyboardInterrupt
        return execute(self, cell, *arguments, **options)

    monkeypatch.setattr(recorder.NotebookClient, "execute_cell", ended)
    path = write(folder, "1", STAGED, last, "print('the rest')")
    before, command = path.read_text(), [str(path), "--allow-cpu", "--timeout", "2"]
    assert recorder.main(command) == 1
    assert re.search(f"code cell 3 .* failed: .*{says}", capsys.readouterr().err)
    assert path.read_text() == before and left(folder) == []
    assert recorder.main([*command, "--keep-going"]) == 1
    assert re.search(f"code cell 3 .*{says}.*; no later cell has run", capsys.readouterr().err)
    assert left(folder) == ["additions.json", "additions.json.gz"]
    assert nbformat.read(path, 4).cells[-1].outputs == []


def test_refuses_a_machine_without_gpu(folder, capsys) -> None:
    before = (path := write(folder, *CELLS)).read_text()
    assert recorder.main([str(path)]) == 2
    assert "--allow-cpu" in capsys.readouterr().err and path.read_text() == before


@forked
def test_an_experiment_that_neither_runs_nor_was_recorded_makes_a_draft(folder, capsys) -> None:
    """The notice stands in the page, later cells run, and what cannot go on is named."""
    needs = CELLS[1].replace('"cpu"', '"gpus:64"')
    cells = [CELLS[0], needs, CELLS[2], "first, second = result['pair']", "print('the rest')"]
    path = write(folder, *cells)
    assert recorder.main([str(path), "--allow-cpu"]) == 0
    said = capsys.readouterr().err
    assert said.count(f"{NOTICE}: recorded_here, on a machine that has gpus:64\n") == 1
    assert "is a draft" in said and "code cell 4" in said
    shown = [cell.outputs[0] for cell in nbformat.read(path, 4).cells[3:]]
    assert shown[0].text.startswith(f"{NOTICE}: recorded_here")
    assert shown[2].text == "the rest\n"


@forked
@pytest.mark.parametrize("gpus, shown", [(0, "the GPU's"), (1, "new")])
def test_a_gpus_output_stays_where_there_is_none(folder, monkeypatch, gpus, shown) -> None:
    """The kernel of the test has no GPU either way."""
    monkeypatch.setattr(recorder, "gpu_count", lambda: gpus)
    path = write(folder, "print('new', end='')")
    notebook = nbformat.read(path, 4)
    notebook.cells[1].metadata["tags"] = ["skip-execution"]
    notebook.cells[1].outputs = [new_output("stream", text="the GPU's")]
    nbformat.write(notebook, path)
    assert recorder.main([str(path), "--allow-cpu"]) == 0
    assert nbformat.read(path, 4).cells[1].outputs[0].text == shown


def test_a_bad_notebook_is_named_and_does_not_keep_the_next_one_from_its_turn(folder, capsys):
    paths = [folder / "gone.ipynb"]
    for content in ("{", "{}", "[]", '{"nbformat": "4", "cells": 1}', INVALID):
        paths.append(folder / f"bad{len(paths)}.ipynb")
        paths[-1].write_text(content)
    assert recorder.main([*map(str, paths), "--allow-cpu"]) == 1
    said = capsys.readouterr().err
    assert all(f"{path.name} is not a notebook" in said for path in paths[1:])
    assert "gone.ipynb: no such notebook" in said


@pytest.mark.parametrize("hot", [("it is hot", None), (None, "it is hot")])
def test_all_notebooks_by_default_and_a_gpu_that_is_held_back_comes_with_a_warning(
    folder, monkeypatch, capsys, hot
) -> None:
    """Before the first notebook, or after the last."""
    write(folder)
    asked = iter(hot)
    monkeypatch.setattr(recorder, "held_back", lambda: next(asked))
    assert recorder.main(["--allow-cpu"]) == 0
    said = capsys.readouterr()
    assert "chapter.ipynb" in said.out and "WARNING: it is hot. Do not keep" in said.err


# --- beside the book, not instead ----------------------------------------------------------------


@forked
def test_one_command_measures_here_and_leaves_the_book_alone(folder, capsys) -> None:
    """No trace of a profile is kept; a second time replaces the first."""
    path, mine = write(folder, *CELLS, STAGED.replace('json"', 'json.gz"')), folder / "a" / "mine"
    before = path.read_text("utf-8")
    for _ in range(2):
        assert recorder.main(["--to", str(mine), "--allow-cpu", str(path)]) == 0
        said = capsys.readouterr().out
        row = next(line for line in said.splitlines() if line.startswith("recorded_here"))
        assert re.split(r"  +", row)[1:] == ["Copies", "2.00 ms", "–", "3.00 ms"]
        assert path.read_text("utf-8") == before and left(folder) == []
        assert [file.name for file in mine.iterdir()] == ["recorded_here.json"]


def test_a_folder_that_cannot_hold_records_is_refused_before_anything_runs(folder, capsys) -> None:
    (folder / "file").write_text("")
    (folder / "damaged.json").write_text("{}")
    for wrong, says in (("file", "a folder"), ("file/below", "a folder"), (".", "damaged")):
        arguments = ["--to", str(folder / wrong), "--allow-cpu", str(folder / "gone.ipynb")]
        assert recorder.main(arguments) == 2
        said = capsys.readouterr().err
        assert says in said and "no such notebook" not in said
