"""Records that load as they were saved, and every way in which one can be damaged."""

import json
import re

import pytest

from utils.record import ExperimentError, NotRecorded, load_record, save_record
from utils.record import file as records
from utils.record.file import check_json


def test_saved_record_is_one_that_loads(recorded) -> None:
    record = load_record(recorded)
    assert record["needs"] == ["cuda"] and record["provenance"]["gpu"] == "Another GPU"
    assert json.loads(recorded.read_text())["checksum"].startswith("sha256:")
    assert not list(recorded.parent.glob("*.partial"))


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda text: text[: len(text) // 2], "not complete JSON"),
        (lambda text: "", "not complete JSON"),
        (lambda text: "[]", "schema"),
        (lambda text: text.replace('"schema": 1', '"schema": 99'), "schema"),
        (lambda text: text.replace("1.5", "2.5"), "checksum"),
        (lambda text: text.replace("Another GPU", "Better GPU"), "checksum"),
        (lambda text: text.replace('"driver"', '"drover"'), "provenance.driver"),
        (lambda text: text.replace('"result"', '"resolt"'), "lacks result"),
        (lambda text: re.sub(r'("provenance": )\{[^}]*\}', r"\1[]", text), "as a mapping"),
    ],
)
def test_damaged_record(make, recorded, damage, says) -> None:
    text = recorded.read_text()
    assert damage(text) != text
    recorded.write_text(damage(text))
    with pytest.raises(ExperimentError, match=says) as caught:
        make()()
    assert "speed.json" in str(caught.value) and "git checkout" in str(caught.value)


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda text: "[" * 10**5, "not complete JSON"),
        (lambda text: '{"seconds": ' + "9" * 5000 + "}", "not complete JSON"),
        (lambda text: text.replace("1.5", "NaN"), "NaN is no number"),
        (lambda text: text.replace('"gpu"', '"gpu": "Better GPU", "gpu"', 1), "stands twice"),
        (lambda text: text.replace("Another", "\\ud800"), "checksum"),
    ],
)
def test_a_record_that_python_reads_otherwise_than_a_reader(recorded, damage, says) -> None:
    recorded.write_text(damage(recorded.read_text()))
    with pytest.raises(ExperimentError, match=says):
        load_record(recorded)


PAIR = {"quantity": "Copy", "unit": "ms", "predicted": 2.0, "measured": 1.5, "because": "bytes"}


@pytest.mark.parametrize(
    "fields",
    [
        *({"ledger": wrong} for wrong in (None, "text", {"a": 1}, [1], [PAIR, PAIR])),
        *({"ledger": [{**PAIR, "measured": wrong}]} for wrong in ("5", None, True, 10**400)),
        *({"ledger": [{**PAIR, "predicted": wrong}]} for wrong in (0, -2.0)),
        *({"ledger": [{**PAIR, "quantity": wrong}]} for wrong in (5, [1])),
        *({"seconds": wrong} for wrong in ("5", -1.0, None)),
        {"needs": "cuda"},
        {"code": 5},
        *({"gpu_count": wrong} for wrong in ("1", None, -1, 10**30)),
        *({field: 5} for field in ("gpu", "torch", "date")),
    ],
)
def test_fields_of_another_kind_under_a_right_checksum(recorded, fields) -> None:
    whole = load_record(recorded)
    field, value = next(iter(fields.items()))
    (whole if field in whole else whole["provenance"])[field] = value
    save_record(whole, recorded)
    with pytest.raises(ExperimentError, match=rf"no sensible (provenance\.)?{field}"):
        load_record(recorded)


def test_a_folder_in_the_place_of_a_record(recorded) -> None:
    recorded.unlink()
    recorded.mkdir()
    with pytest.raises(ExperimentError, match=r"speed\.json cannot be read: "):
        load_record(recorded)


def test_one_line_describes_the_machine() -> None:
    machine = {"gpu": "H100", "gpu_count": 1, "cpu": "a CPU", "torch": "2.11", "date": "2026-11-20"}
    assert records.where(machine) == "H100, torch 2.11, 2026-11-20"
    assert records.where({**machine, "gpu_count": 2}).startswith("2 x H100, ")
    assert records.where({**machine, "gpu_count": 0, "gpu": None}).startswith("a CPU, ")


def test_record_under_another_name(make, recorded) -> None:
    copy = recorded.with_name("other.json")
    copy.write_text(recorded.read_text())
    with pytest.raises(ExperimentError, match="holds the experiment 'speed'"):
        load_record(copy)


@pytest.mark.parametrize(
    "value, says",
    [
        ({"a": [1, float("nan")]}, r"result\['a'\]\[1\] is nan"),
        ({1: 2}, "JSON keys are strings"),
        ({"a": object()}, r"result\['a'\] is a object"),
        (__import__("torch").ones(1), "result is a Tensor"),
        ({"a": {1, 2}}, "is a set"),
    ],
)
def test_results_that_json_cannot_hold(value, says) -> None:
    with pytest.raises(ExperimentError, match=says):
        check_json(value)


def test_a_record_by_name(make, recorded, monkeypatch, tmp_path) -> None:
    result, where = records.recorded("speed")
    assert result == {"x": 1.5} and where.startswith("Another GPU, ")
    staged = {**load_record(recorded), "result": {"x": 2.5}}
    save_record(staged, tmp_path / "speed.json")
    monkeypatch.setenv("BOOK_RECORD_TO", str(tmp_path))
    assert records.recorded("speed").result == {"x": 2.5}, "what was just measured comes first"
    assert isinstance(records.recorded("sped").result, NotRecorded), "still to be measured"
    monkeypatch.delenv("BOOK_RECORD_TO")
    with pytest.raises(ExperimentError, match=r"sped\.json is missing"):
        records.recorded("sped")
