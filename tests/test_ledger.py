"""Predictions beside measurements."""

import pytest

from utils import experiment as module
from utils.experiment import ExperimentError, load_record
from utils.ledger import Ledger


def ledger(value: float = 2.0) -> Ledger:
    made = Ledger()
    made.predict("Copy", value, "GB/s", because="the bus")
    return made


def test_a_prediction_is_printed_with_its_reason(capsys) -> None:
    ledger()
    assert capsys.readouterr().out == "predicted Copy: 2.00 GB/s, because the bus\n"


def test_check_sets_both_side_by_side(make, gpu) -> None:
    speed = make()
    speed()
    table = ledger().check(speed, {"Copy": 1.5})
    assert table.rows == [["Copy", "2.00 GB/s", "1.50 GB/s", "0.75"]]


def test_pairs_are_kept_with_the_record(make, gpu, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_RECORD_TO", str(module.RECORDS))
    speed = make()
    ledger().check(speed, {"Copy": speed()["x"]})
    assert load_record(module.RECORDS / "speed.json")["ledger"] == [
        {
            "quantity": "Copy",
            "unit": "GB/s",
            "predicted": 2.0,
            "measured": 1.5,
            "because": "the bus",
        }
    ]


def test_replaying_other_pairs_than_recorded_is_an_error(make, gpu, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_RECORD_TO", str(module.RECORDS))
    speed = make()
    ledger().check(speed, {"Copy": speed()["x"]})
    monkeypatch.delenv("BOOK_RECORD_TO")
    gpu(0)
    replayed = make()
    replayed()
    ledger().check(replayed, {"Copy": 1.5})
    with pytest.raises(ExperimentError, match="other predictions or measurements"):
        ledger(3.0).check(replayed, {"Copy": 1.5})
    with pytest.raises(ExperimentError, match="other predictions or measurements"):
        ledger().check(replayed, {"Copy": 1.6})


def test_reference_column_beside_a_live_result(make, gpu, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_RECORD_TO", str(module.RECORDS))
    speed = make()
    ledger().check(speed, {"Copy": speed()["x"]})
    monkeypatch.delenv("BOOK_RECORD_TO")
    speed = make()
    speed()
    assert ledger().check(speed, {"Copy": 4.0}).rows[0][-2:] == ["2.00", "1.50 GB/s"]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_ratio_needs_a_positive_prediction(value) -> None:
    with pytest.raises(ValueError, match="positive"):
        ledger(value)


def test_a_prediction_needs_a_reason_and_is_made_once() -> None:
    with pytest.raises(ValueError, match="guess"):
        Ledger().predict("Copy", 1, "s", because=" ")
    made = ledger()
    with pytest.raises(ValueError, match="before"):
        made.predict("Copy", 3, "GB/s", because="the bus")


@pytest.mark.parametrize("measured", [{}, {"Copy": 1, "More": 2}, {"Cpoy": 1}])
def test_every_prediction_is_checked_and_nothing_else(make, gpu, measured) -> None:
    speed = make()
    speed()
    with pytest.raises(ValueError, match="predicted but not measured"):
        ledger().check(speed, measured)


def test_check_before_the_experiment_ran(make, gpu) -> None:
    with pytest.raises(ExperimentError, match=r"call speed\(\) before"):
        ledger().check(make(), {"Copy": 1})


def test_a_measurement_may_be_negative_and_stays_so(make, gpu) -> None:
    speed = make()
    speed()
    assert ledger().check(speed, {"Copy": -1.0}).rows == [
        ["Copy", "2.00 GB/s", "-1.00 GB/s", "-0.50"]
    ]
