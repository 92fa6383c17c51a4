"""All predictions, where they come from, and a reader's own machine beside the book's."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from notebooks import NOTEBOOKS, experiments, read
from utils.record import (
    RECORDS,
    ExperimentError,
    all_predictions,
    compare,
    counted_predictions,
    experiment_sections,
    load_record,
    predictions,
    save_record,
)
from utils.record.predictions import differing, same


@pytest.fixture
def changed(tmp_path):
    """A function that copies a record to a folder, with other fields and a right checksum."""

    def changed(name: str, folder: str, **fields: object) -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / f"{name}.json"
        save_record({**load_record(RECORDS / path.name), **fields}, path)
        return path

    return changed


def test_every_prediction_of_the_records_is_kept_once() -> None:
    records = [json.loads(path.read_text("utf-8")) for path in RECORDS.glob("*.json")]
    found = all_predictions()
    assert len(found) == sum(len(whole["ledger"]) for whole in records) > 500
    assert found[0]["where"].startswith(("NVIDIA", "2 x", "4 x")) and found[0]["because"]


def test_what_is_measured_after_an_edition_changes_no_count(monkeypatch) -> None:
    counted = counted_predictions()
    assert {e["quantity"] for e in all_predictions()} >= {e["quantity"] for e in counted}
    assert not any(entry.get("later") for entry in counted)
    last = max(entry["where"].split()[-1] for entry in counted)
    monkeypatch.setattr(predictions, "EDITION", "2026-11-21")
    assert 0 < len(counted_predictions()) < len(counted) and last > "2026-11-21"


def test_a_later_prediction_is_another_than_the_first() -> None:
    first = {"quantity": "Copy", "unit": "ms", "predicted": 2.0, "measured": 1.5, "because": "bus"}
    later = {**first, "later": True}
    assert same([first], [first]) and not same([first], [later]) and not same([later], [first])
    words = "predicted 2.00 ms, measured 1.50 ms, because bus"
    assert differing([first], [later]) == (f"'Copy': {words}", f"'Copy' (later): {words}")
    assert differing([first], [first, later])[0] == "no more than it"


def test_every_experiment_has_its_section() -> None:
    found = experiment_sections()
    defined = {name for path in NOTEBOOKS for name in experiments(read(path))}
    assert found.keys() == defined >= {entry["experiment"] for entry in all_predictions()}
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
    cells[0].source = "# In words"
    nbformat.write(new_notebook(cells=cells[:3:2]), tmp_path / "in_words.ipynb")
    found = experiment_sections(tmp_path)
    assert found["a"] == ("in_words", "in words", "In words", "in_words.ipynb#in-words")
    (tmp_path / "in_words.ipynb").unlink()
    found = experiment_sections(tmp_path)
    assert found["a"] == ("91_x", "9.1", "Why x.to? More", "91_x.ipynb#why-xto-more")


def test_mine_stands_beside_the_book(changed, tmp_path) -> None:
    """But for what was predicted later, and what was not measured there."""
    path = changed("fused_gelu", "mine")
    entries = load_record(path)["ledger"]
    rows = compare(path.parent).rows
    assert [row[:2] for row in rows] == [["fused_gelu", e["quantity"]] for e in entries]
    assert all(re.match(r"[\d.,]+ \S", text) for text in rows[0][2:])
    more = {**entries[0], "quantity": "New"}
    changed("fused_gelu", "mine", ledger=[{**entries[0], "later": True}, *entries[2:], more])
    assert compare(path.parent).rows == [
        *rows[2:],
        ["fused_gelu", "New", rows[0][2], "–", rows[0][4]],
    ]
    changed("fused_gelu", "mine", ledger=[{**entry, "measured": None} for entry in entries])
    assert compare(path.parent) is None and compare(tmp_path) is None
    path.write_text(path.read_text("utf-8").replace("1.15", "1.16"), encoding="utf-8")
    with pytest.raises(ExperimentError, match="fused_gelu"):
        compare(path.parent)
