"""The ledger of all predictions, where they come from, and a reader's own machine beside it."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from notebooks import BOOK, NOTEBOOKS, experiments, read
from utils.record import (
    RECORDS,
    ExperimentError,
    all_predictions,
    compare,
    experiment_sections,
    load_record,
    recorder,
    save_record,
)
from utils.record.predictions import keep_measured

PREDICTED = """
from utils.record import experiment


@experiment(needs="cpu")
def measured_by_me():
    return {"x": 3.0}


measured_by_me.predict("Copies", 2, "ms", because="planted")
result = measured_by_me()
measured_by_me.check({"Copies": result["x"]})
"""


def changed(name: str, folder: Path, **fields) -> Path:
    """A copy of a record, with other fields and a right checksum."""
    whole = load_record(RECORDS / f"{name}.json")
    folder.mkdir(exist_ok=True)
    save_record({**whole, **fields}, folder / f"{name}.json")
    return folder / f"{name}.json"


# --- all predictions, and where they are --------------------------------------------------------


def test_every_prediction_of_the_records_is_kept_once() -> None:
    records = [json.loads(path.read_text("utf-8")) for path in RECORDS.glob("*.json")]
    assert len(all_predictions()) == sum(len(whole["ledger"]) for whole in records) > 500
    entry = all_predictions()[0]
    assert entry["where"].startswith(("NVIDIA", "2 x", "4 x")) and entry["because"]


def test_every_experiment_has_its_section() -> None:
    found = experiment_sections()
    defined = {name for path in NOTEBOOKS for name in experiments(read(path))}
    assert found.keys() == defined
    assert {entry["experiment"] for entry in all_predictions()} <= defined
    gelu = found["fused_gelu"]
    assert gelu.chapter == "4.3" and gelu.link.startswith("43_compile.ipynb#what-does-torchcompile")


def test_what_stands_in_a_fence_is_no_heading(tmp_path) -> None:
    cells = [
        new_markdown_cell("# 9.1 · Title"),
        new_markdown_cell("## Why `x.to`? [More](a.md)\n\n```bash\n# a comment\n```"),
        new_code_cell('@experiment(\n    needs=["cuda"]\n)\ndef a():\n    pass'),
        new_markdown_cell("### Later"),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "91_x.ipynb")
    assert experiment_sections(tmp_path)["a"] == (
        "91_x",
        "9.1",
        "Why x.to? More",
        "91_x.ipynb#why-xto-more",
    )


# --- my own machine ------------------------------------------------------------------------------


def test_mine_stands_beside_the_book(tmp_path) -> None:
    changed("fused_gelu", tmp_path / "mine", seconds=1.0)
    rows = repr(compare(tmp_path / "mine")).splitlines()
    assert len(rows) == 1 + len(load_record(RECORDS / "fused_gelu.json")["ledger"])
    eager = next(row for row in rows if "Eager" in row)
    assert len(re.findall(r"[\d.]+ ms", eager)) == 3


def test_a_prediction_made_later_is_left_out(tmp_path) -> None:
    path = changed("fused_gelu", tmp_path, seconds=1.0)
    entries = load_record(path)["ledger"]
    rows = len(compare(tmp_path).rows)
    changed("fused_gelu", tmp_path, ledger=[{**entries[0], "later": True}, *entries[1:]])
    assert len(compare(tmp_path).rows) == rows - 1


def test_mine_are_moved_also_into_a_folder_below_another_and_again(tmp_path) -> None:
    for seconds in (1.0, 2.0):
        staged = changed("fused_gelu", tmp_path / "staging", seconds=seconds)
        folder = tmp_path / "a" / "mine"
        assert keep_measured(staged.parent, folder) == ["fused_gelu.json"]
        assert load_record(folder / "fused_gelu.json")["seconds"] == seconds
        assert not staged.exists()


def test_nothing_of_mine_is_no_table(tmp_path) -> None:
    assert compare(tmp_path) is None


def test_what_was_only_replayed_is_not_mine(tmp_path) -> None:
    changed("fused_gelu", tmp_path / "staging")
    changed("who_waits", tmp_path / "staging", seconds=0.123)
    assert keep_measured(tmp_path / "staging", tmp_path / "mine") == ["who_waits.json"]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["who_waits.json"]


def test_a_damaged_record_of_mine_is_refused_by_name_before_anything_runs(tmp_path, capsys) -> None:
    path = changed("fused_gelu", tmp_path / "mine")
    path.write_text(path.read_text("utf-8").replace("1.15", "1.16"), encoding="utf-8")
    with pytest.raises(ExperimentError, match="fused_gelu"):
        compare(tmp_path / "mine")
    before = (BOOK / "12_gpus.ipynb").stat().st_mtime
    arguments = ["--to", str(tmp_path / "mine"), "--allow-cpu", str(BOOK / "12_gpus.ipynb")]
    assert recorder.main(arguments) == 2
    assert "fused_gelu.json does not match its checksum" in capsys.readouterr().err
    assert (BOOK / "12_gpus.ipynb").stat().st_mtime == before


def test_a_file_instead_of_a_folder_is_refused_before_anything_runs(tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("")
    gone = str(tmp_path / "no such notebook.ipynb")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        assert recorder.main(["--to", str(wrong), "--allow-cpu", gone]) == 2
        said = capsys.readouterr().err
        assert str(wrong) in said and "name a folder" in said and "notebook" not in said


def test_one_command_measures_here_and_leaves_the_book_alone(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("BOOK_EXPERIMENTS", raising=False)
    notebook = tmp_path / "chapter.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(new_notebook(cells=[new_code_cell(PREDICTED)], metadata=kernel), notebook)
    before = notebook.read_text("utf-8")
    assert recorder.main(["--to", str(tmp_path / "mine"), "--allow-cpu", str(notebook)]) == 0
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if line.startswith("measured_by_me"))
    assert re.split(r"  +", row)[1:] == ["Copies", "2.00 ms", "–", "3.00 ms"]
    assert notebook.read_text("utf-8") == before
    assert not (RECORDS / "measured_by_me.json").exists()
    assert load_record(tmp_path / "mine" / "measured_by_me.json")["result"] == {"x": 3.0}
