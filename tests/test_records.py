"""Records that load as they were saved, and every way in which one can be damaged."""

import re

import pytest

from utils.cards import prediction
from utils.record import ExperimentError, NotRecorded, load_record, save_record, where
from utils.record import recorded as by_name
from utils.record.file import check_json


def test_a_record_that_is_loaded_and_saved_again_has_the_same_bytes(make, gpu, recording) -> None:
    speed = make("return {'é': [1, 2.5], 'x': [['a'], []]}")
    with recording():
        speed()
    before = speed.path.read_text(encoding="utf-8")
    assert '"é": [1, 2.5],\n' in before, "lists of numbers stand on one line"
    assert before.startswith('{\n "schema": 1,\n') and before.endswith('"\n}\n')
    record = load_record(speed.path)
    assert record["needs"] == ["cuda"] and record["provenance"]["gpu"] == "Another GPU"
    save_record(record, speed.path)
    assert speed.path.read_text(encoding="utf-8") == before
    assert [path.name for path in speed.path.parent.iterdir()] == ["speed.json"]


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda text: text[: len(text) // 2], "is not complete JSON"),
        (lambda text: "", "is not complete JSON"),
        (lambda text: "[" * 10**5, "is not complete JSON"),
        (lambda text: '{"seconds": ' + "9" * 5000 + "}", "is not complete JSON"),
        (lambda text: "[]", "is no record: Expected `object`"),
        (lambda text: text.replace('"schema": 1', '"schema": 99'), r"99 - at `\$\.schema`"),
        (
            lambda text: text.replace('"driver"', '"drover"'),
            r"field `driver` - at `\$\.provenance`",
        ),
        (lambda text: text.replace('"result"', '"resolt"'), "required field `result`"),
        (lambda text: re.sub(r'("provenance": )\{[^}]*\}', r"\1[]", text), "got `array`"),
        (lambda text: text.replace("1.5", "2.5"), "checksum: edited by hand"),
        (lambda text: text.replace("Another GPU", "Better GPU"), "checksum"),
        (lambda text: text.replace('"seconds": 0', '"seconds": 9'), "checksum"),
        # What Python reads otherwise than a reader.
        (lambda text: text.replace("1.5", "NaN"), "NaN is no number"),
        (lambda text: text.replace('"gpu"', '"gpu": "Better GPU", "gpu"', 1), "stands twice"),
        (lambda text: text.replace("Another", "\\ud800"), "checksum"),
    ],
)
def test_a_damaged_record_says_what_is_wrong_and_what_to_do(make, recorded, damage, says) -> None:
    text = recorded.read_text()
    assert damage(text) != text
    recorded.write_text(damage(text))
    for load in (make(), lambda: load_record(recorded), lambda: by_name("speed")):
        with pytest.raises(ExperimentError, match=rf"speed\.json .*{says}.*git checkout"):
            load()


PAIR = {"quantity": "Copy", "unit": "ms", "predicted": 2.0, "measured": 1.5, "because": "bytes"}


@pytest.mark.parametrize(
    "fields",
    [
        *({"ledger": wrong} for wrong in (None, "text", {"a": 1}, [1], [PAIR, PAIR])),
        *({"ledger": [{**PAIR, "measured": wrong}]} for wrong in ("5", True, 10**400)),
        *({"ledger": [{**PAIR, "predicted": wrong}]} for wrong in (0, -2.0, None)),
        *({"ledger": [{**PAIR, "quantity": wrong}]} for wrong in (5, [1])),
        {"ledger": [{**PAIR, "later": "no"}]},
        *({"seconds": wrong} for wrong in ("5", -1.0, None)),
        *({"needs": wrong} for wrong in ("cuda", [5])),
        {"code": 5},
        *({"gpu_count": wrong} for wrong in ("1", None, -1, 10**30)),
        *({field: 5} for field in ("gpu", "torch", "cpu", "date")),
    ],
)
def test_fields_of_another_kind_under_a_right_checksum(recorded, fields) -> None:
    whole = load_record(recorded)
    field, value = next(iter(fields.items()))
    (whole if field in whole else whole["provenance"])[field] = value
    save_record(whole, recorded)
    says = "predicts a quantity twice" if value == [PAIR, PAIR] else rf"at `\$\..*{field}"
    with pytest.raises(ExperimentError, match=says):
        load_record(recorded)


def test_a_record_under_another_name_and_a_folder_in_its_place(recorded) -> None:
    other = recorded.with_name("other.json")
    recorded.rename(other)
    with pytest.raises(ExperimentError, match=r"other\.json holds the experiment 'speed'"):
        load_record(other)
    recorded.mkdir()
    with pytest.raises(ExperimentError, match=r"speed\.json cannot be read: "):
        load_record(recorded)


def test_one_line_describes_the_machine() -> None:
    machine = {"gpu": "H100", "gpu_count": 1, "cpu": "a CPU", "torch": "2.11", "date": "2026-11-20"}
    assert where(machine) == "H100, torch 2.11, 2026-11-20"
    assert where({**machine, "gpu_count": 2}).startswith("2 x H100, ")
    assert where({**machine, "gpu_count": 0, "gpu": None}).startswith("a CPU, ")


@pytest.mark.parametrize(
    "value, says",
    [
        ({"a": [1, float("nan")]}, r"result\['a'\]\[1\] is nan"),
        ({"a": (1, float("inf"))}, r"result\['a'\]\[1\] is inf"),
        ({1: 2}, "JSON keys are strings"),
        ({"a": object()}, r"result\['a'\] is a object"),
        (__import__("torch").ones(1), "result is a Tensor"),
        (__import__("numpy").float64(1), "result is a float64"),
    ],
)
def test_results_that_json_cannot_hold(value, says) -> None:
    with pytest.raises(ExperimentError, match=says):
        check_json(value)


def test_a_record_by_name(recorded, monkeypatch, tmp_path) -> None:
    result, machine, _ = by_name("speed")
    assert result == {"x": 1.5} and machine.startswith("Another GPU, ")
    pair = prediction("Copies", 2, "ms", because="planted") | {"measured": 2.5}
    staged = {**load_record(recorded), "result": {"x": 2.5}, "ledger": [pair]}
    save_record(staged, tmp_path / "speed.json")
    monkeypatch.setenv("BOOK_RECORD_TO", str(tmp_path))
    assert by_name("speed").result == {"x": 2.5}, "what was just measured comes first"
    assert by_name("speed").measured == {"Copies": 2.5}
    assert isinstance(by_name("sped").result, NotRecorded), "still to be measured"
    monkeypatch.delenv("BOOK_RECORD_TO")
    with pytest.raises(ExperimentError, match=r"sped\.json is missing"):
        by_name("sped")
