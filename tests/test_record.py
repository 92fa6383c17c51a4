"""The recorder: all or nothing, and never on the wrong machine by accident."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from utils.record import NOTICE, load_record
from utils.record import recorder as module

METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
CELLS = [
    "from utils.record import experiment",
    '@experiment(needs="cpu")\ndef recorded_here():\n    return {"x": 1.5}',
    "result = recorded_here()",
]


# What only nbformat.validate() refuses: a cell's source is a number.
INVALID = """{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code",
"id": "a", "metadata": {}, "source": 5, "outputs": [], "execution_count": null}]}"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A book of no notebooks, on a machine without a GPU."""
    (tmp_path / "records").mkdir()
    monkeypatch.delenv("BOOK_EXPERIMENTS", raising=False)
    monkeypatch.setattr(module, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(module, "TRACES", tmp_path / "traces")
    monkeypatch.setattr(module, "BOOK", tmp_path)
    monkeypatch.setattr(module, "gpu_count", lambda: 0)
    return tmp_path


def write(folder: Path, *sources: str) -> Path:
    cells = [new_markdown_cell("# Title"), *(new_code_cell(s) for s in sources)]
    path = folder / "chapter.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata=METADATA), path)
    return path


def test_writes_records_and_outputs_and_no_timing(folder, capsys) -> None:
    """A figure in the first cell is drawn from records by name: it runs again after the last."""
    first = "from utils.record import experiment, recorded\nprint(recorded('recorded_here'))"
    later = "with open('ran', 'a') as file:\n    print(recorded('recorded_here').where, file=file)"
    path = write(folder, first, *CELLS[1:], later)
    assert module.main([str(path), "--allow-cpu"]) == 0
    said = capsys.readouterr()
    assert len((folder / "ran").read_text("utf-8").splitlines()) == 1, "only the first runs again"
    assert "chapter.ipynb: 1 records" in said.out and "draft" not in said.err
    assert load_record(folder / "records" / "recorded_here.json")["result"] == {"x": 1.5}
    notebook = nbformat.read(path, 4)
    assert "Recorded(result={'x': 1.5}" in notebook.cells[1].outputs[0].text
    assert notebook.cells[-2].outputs[0].text.startswith("measured on ")
    assert [c.execution_count for c in notebook.cells[1:]] == [1, 2, 3, 4]
    assert all("execution" not in c.metadata for c in notebook.cells)
    assert notebook.metadata == METADATA, "no trace of this machine's Python"


TRACED = """
import torch
from torch.profiler import profile
from utils.record import experiment
from utils.profile import load, save


@experiment(needs="cpu")
def traced_here():
    with profile() as profiler:
        torch.ones(2) + 1
    return {"trace": save(profiler, "additions")}


print(len(load(traced_here()["trace"]).operators) > 0)
"""


# What TRACED leaves for the recorder, as to names, without importing torch.
STAGED = """
import os, pathlib
staging = pathlib.Path(os.environ["BOOK_RECORD_TO"])
(staging / "additions.json.gz").write_bytes(b"a trace")
(staging / "additions.json").write_text("a record")
"""


def test_a_trace_is_kept_with_its_record(folder) -> None:
    path = write(folder, TRACED)
    module.record(path)
    result = load_record(folder / "records" / "traced_here.json")["result"]
    assert [p.name for p in (folder / "traces").iterdir()] == [result["trace"]["file"]]


def test_failing_cell_changes_nothing_and_is_named(folder, capsys) -> None:
    fails = "print('so far')\ndef fail():\n    raise ValueError('planted')\nfail()"
    path = write(folder, "1", "2", STAGED, fails)
    before = path.read_text()
    assert module.main([str(path), "--allow-cpu"]) == 1
    assert path.read_text() == before
    assert list((folder / "records").iterdir()) == [] and not (folder / "traces").exists()
    err = capsys.readouterr().err
    assert "Nothing of it was changed" in err
    said = err[err.index("record: chapter.ipynb") :].splitlines()
    assert re.fullmatch(
        r"record: chapter.ipynb: code cell 4 \(id .*\) failed: ValueError: planted", said[0]
    )
    assert said[1].strip() == "fail()" and len(said) <= 4


def test_going_on_after_a_failing_cell_writes_what_there_is(folder, capsys) -> None:
    first = "import os\nassert 'BOOK_EXPERIMENTS' not in os.environ"
    path = write(folder, first, "raise ValueError('planted')", STAGED, "print('the rest')")
    assert module.main([str(path), "--allow-cpu", "--keep-going"]) == 1
    err = capsys.readouterr().err
    assert "code cell 2" in err and "code cell 1" not in err
    assert [p.name for p in (folder / "records").iterdir()] == ["additions.json"]
    assert [p.name for p in (folder / "traces").iterdir()] == ["additions.json.gz"]
    assert nbformat.read(path, 4).cells[-1].outputs[0].text == "the rest\n"


def test_a_cell_runs_in_its_folder_and_knows_the_project(folder, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    tells = (
        "import os\nprint(os.getcwd(), flush=True)\nprint(os.environ['PYTHONPATH'], flush=True)\n"
        "print(os.environ['BOOK_EXPERIMENTS'])"
    )
    path = write(folder, "", tells)
    assert module.main([str(path), "--allow-cpu", "--new"]) == 0
    (said,) = nbformat.read(path, 4).cells[-1].outputs
    assert said.text.splitlines() == [str(folder), f"{module.ROOT}{os.pathsep}/mine", "new"]


@pytest.mark.parametrize(
    "last, says", [("import time; time.sleep(60)", "timed out"), ("import os; os._exit(1)", "died")]
)
def test_hanging_or_dying_kernel(folder, last, says) -> None:
    path = write(folder, "1 + 1", last)
    before = path.read_text()
    with pytest.raises(module.RecordingError, match=f"(?s)code cell 2.*{says}"):
        module.record(path, timeout=5)
    assert path.read_text() == before and list((folder / "records").iterdir()) == []


@pytest.mark.parametrize(
    "last, says",
    [
        ("import time; time.sleep(60)", "timed out"),
        ("import os; os._exit(1)", "died"),
        ("# somebody ends the run", "interrupted"),
    ],
)
def test_what_was_measured_before_the_kernel_was_lost_is_kept(
    folder, monkeypatch, capsys, last, says
) -> None:
    execute = module.NotebookClient.execute_cell

    def ended(self, cell, *arguments, **options) -> object:
        if says == "interrupted" and cell.source == last:
            raise KeyboardInterrupt
        return execute(self, cell, *arguments, **options)

    monkeypatch.setattr(module.NotebookClient, "execute_cell", ended)
    path = write(folder, "1", STAGED, last, "print('the rest')")
    command = [str(path), "--allow-cpu", "--keep-going", "--timeout", "5"]
    assert module.main(command) == 1
    assert re.search(f"code cell 3 .*{says}.*; no later cell has run", capsys.readouterr().err)
    assert [p.name for p in (folder / "records").iterdir()] == ["additions.json"]
    assert nbformat.read(path, 4).cells[-1].outputs == []


def test_refuses_a_machine_without_gpu(folder, capsys) -> None:
    path = write(folder, *CELLS)
    before = path.read_text()
    assert module.main([str(path)]) == 2
    assert "--allow-cpu" in capsys.readouterr().err
    assert path.read_text() == before


def test_an_experiment_that_neither_runs_nor_was_recorded_makes_a_draft(folder, capsys) -> None:
    """The notice stands in the page, later cells run, and what cannot go on is named."""
    needs = CELLS[1].replace('"cpu"', '"gpus:64"')
    cells = [CELLS[0], needs, CELLS[2], "first, second = result['pair']", "print('the rest')"]
    path = write(folder, *cells)
    assert module.main([str(path), "--allow-cpu"]) == 0
    err = capsys.readouterr().err
    assert (
        f"{NOTICE}: recorded_here, on a machine that has" in err
        and "is a draft" in err
        and "code cell 4" in err
    )
    shown = [cell.outputs[0] for cell in nbformat.read(path, 4).cells[3:]]
    assert shown[0].text.startswith(f"{NOTICE}: recorded_here")
    assert shown[2].text == "the rest\n"


@pytest.mark.parametrize(
    "content, says",
    [
        (None, "no such notebook"),
        *(
            (text, "is not a notebook")
            for text in ("{", "{}", "[]", '{"nbformat": "4", "cells": 1}', INVALID)
        ),
    ],
)
def test_bad_path(folder, capsys, content, says) -> None:
    path = folder / "bad.ipynb"
    if content:
        path.write_text(content)
    assert module.main([str(path), "--allow-cpu"]) == 1
    assert says in capsys.readouterr().err


def test_a_bad_notebook_does_not_keep_the_next_one_from_its_turn(folder, capsys) -> None:
    assert module.main([str(folder / "a.ipynb"), str(folder / "b.ipynb"), "--allow-cpu"]) == 1
    err = capsys.readouterr().err
    assert "a.ipynb: no such notebook" in err and "b.ipynb: no such notebook" in err


def test_all_notebooks_by_default(folder, capsys) -> None:
    write(folder, "1 + 1")
    assert module.main(["--allow-cpu"]) == 0
    assert "chapter.ipynb" in capsys.readouterr().out


def test_help_says_what_it_does(capsys) -> None:
    with pytest.raises(SystemExit):
        module.main(["--help"])
    assert "--allow-cpu" in capsys.readouterr().out


@pytest.mark.parametrize("said", [("it is hot", None), (None, "it is hot")])
def test_measurements_of_a_gpu_that_is_held_back_come_with_a_warning(
    folder, monkeypatch, capsys, said
) -> None:
    """Before the first notebook, or after the last."""
    asked = iter(said)
    monkeypatch.setattr(module, "held_back", lambda: next(asked))
    assert module.main(["--allow-cpu"]) == 0, "of no notebooks"
    assert "WARNING: it is hot. Do not keep" in capsys.readouterr().err
