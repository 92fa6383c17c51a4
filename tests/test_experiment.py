"""Live or replayed, and every way in which that can go wrong."""

import re

import pytest

from conftest import module
from utils import device
from utils.record import Experiment, ExperimentError, load_record


def test_runs_live_where_the_hardware_is(make, gpu, capsys) -> None:
    assert make()() == {"x": 1.5}
    assert capsys.readouterr().out == "live on Another GPU, torch 2.11.0+cu130, 2026-11-20\n"
    assert not list(module.RECORDS.iterdir()), "a live run outside the recorder writes nothing"


def test_replays_elsewhere_and_says_so(make, recorded, capsys) -> None:
    capsys.readouterr()
    assert make()() == {"x": 1.5}
    out = capsys.readouterr().out
    assert out.startswith("replayed from ") and "Another GPU" in out and "no CUDA GPU here" in out


def test_live_and_replayed_results_have_the_same_types(make, gpu) -> None:
    assert make("return {'pair': (1, 2)}")() == {"pair": [1, 2]}


def test_a_page_that_changes_its_result_does_not_change_the_record(make, gpu, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_RECORD_TO", str(module.RECORDS))
    measured = make("return {'x': [1.5]}")
    measured()["x"].append(2.5)
    measured.keep([])
    assert load_record(module.RECORDS / "speed.json")["result"] == {"x": [1.5]}


def test_reference_is_shown_beside_a_live_result(make, recorded, gpu) -> None:
    gpu(1)
    live = make()
    live()
    assert live.reference == {"x": 1.5}
    gpu(0)
    replayed = make()
    replayed()
    assert replayed.reference is None


def test_a_recorded_page_says_measured_on_whether_it_ran_live_or_not(
    make, recorded, gpu, monkeypatch, capsys, tmp_path
) -> None:
    monkeypatch.setenv("BOOK_RECORD_TO", str(tmp_path))
    for count in (0, 1):
        gpu(count)
        make()()
        assert re.search("^measured on Another GPU, ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    "name, guess, found",
    [
        ("NVIDIA H200", "NVIDIA A10", "H200 SXM"),
        ("Another GPU", "NVIDIA A10", "A10"),
        ("Another GPU", "", None),
        (None, "NVIDIA A10", "A10"),  # measured on a CPU
        (None, "", None),
    ],
)
def test_datasheet_of_the_gpu_that_measured(make, gpu, monkeypatch, name, guess, found) -> None:
    here = {**device.provenance(), "gpu": name}
    monkeypatch.setattr(device, "provenance", lambda: here)
    sheet = make().gpu(guess)
    assert (sheet and sheet.name) == found


# --- predictions ---------------------------------------------------------------------------------


def predicted(speed: Experiment, value: float = 2.0) -> Experiment:
    speed.predict("Copy", value, "GB/s", because="the bus")
    return speed


def test_a_prediction_prints_nothing_and_the_card_says_it_all(make, gpu, capsys) -> None:
    speed = predicted(make())
    card = speed.check({"Copy": speed()["x"]})
    assert capsys.readouterr().out == ""
    assert card.rows() == [["Copy", "2.00 GB/s", "1.50 GB/s", "✗ 0.75 miss"]]
    assert card.lines == ["live on Another GPU, torch 2.11.0+cu130, 2026-11-20"]


@pytest.fixture
def pair_recorded(make, gpu, monkeypatch) -> None:
    """A record with a prediction, on a machine that now has no GPU."""
    monkeypatch.setenv("BOOK_RECORD_TO", str(module.RECORDS))
    speed = predicted(make())
    speed.check({"Copy": speed()["x"]})
    monkeypatch.delenv("BOOK_RECORD_TO")
    gpu(0)


def test_pairs_are_kept_with_the_record(pair_recorded) -> None:
    assert load_record(module.RECORDS / "speed.json")["ledger"] == [
        {
            "quantity": "Copy",
            "unit": "GB/s",
            "predicted": 2.0,
            "measured": 1.5,
            "because": "the bus",
        }
    ]


def test_what_this_gpu_cannot_measure_is_open_on_the_page_and_in_no_record(
    make, gpu, monkeypatch
) -> None:
    monkeypatch.setenv("BOOK_RECORD_TO", str(module.RECORDS))
    speed = predicted(make())
    speed.predict("Copy in fp8", 4, "GB/s", because="half the bytes")
    card = speed.check({"Copy": speed()["x"], "Copy in fp8": float("nan")})
    assert [row[2] for row in card.rows()] == ["1.50 GB/s", "not measured"]
    kept = load_record(module.RECORDS / "speed.json")["ledger"]
    assert [entry["quantity"] for entry in kept] == ["Copy"]


def test_replaying_other_pairs_than_recorded_is_an_error_that_names_both(
    make, pair_recorded
) -> None:
    speed = predicted(make())
    speed()
    assert speed.check({"Copy": 1.5}).lines[0].startswith("replayed from ")
    with pytest.raises(ExperimentError) as caught:
        speed.check({"Copy": 1.6})
    assert "measured 1.60 GB/s" in str(caught.value) and "measured 1.50 GB/s" in str(caught.value)
    speed = predicted(make(), 3.0)
    speed()
    with pytest.raises(ExperimentError) as caught:
        speed.check({"Copy": 1.5})
    assert "predicted 3.00 GB/s" in str(caught.value) and "predicted 2.00 GB/s" in str(caught.value)


def test_the_reference_stands_beside_a_live_result(make, pair_recorded, gpu) -> None:
    gpu(1)
    speed = predicted(make())
    speed()
    card = speed.check({"Copy": 4.0})
    assert card.rows()[0][-2:] == ["✗ 2.00 miss", "1.50 GB/s"]
    assert [line.split(" ")[0] for line in card.lines] == ["live", "reference:"]


def test_a_later_prediction_stands_beside_the_first(make, gpu, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_RECORD_TO", str(module.RECORDS))
    speed = predicted(make())
    speed()
    with pytest.raises(ExperimentError, match="later=True"):
        speed.predict("Send", 1.6, "GB/s", because="headers, too")
    with pytest.raises(ExperimentError, match="later than what"):
        speed.predict("Send", 1.6, "GB/s", because="headers, too", later=True)
    speed.predict("Copy", 1.6, "GB/s", because="headers, too", later=True)
    assert [row[0] for row in speed.check({"Copy": 1.5}).rows()] == ["Copy", "later: Copy"]
    kept = load_record(module.RECORDS / "speed.json")["ledger"]
    assert [entry.get("later") for entry in kept] == [None, True]


def test_a_cell_can_be_run_twice(make, gpu) -> None:
    speed = make()
    for _ in range(2):
        predicted(speed)
        speed()
        assert len(speed.check({"Copy": 1.5}).entries) == 1


@pytest.mark.parametrize("measured", [{}, {"Copy": 1, "More": 2}, {"Cpoy": 1}])
def test_every_prediction_is_checked_and_nothing_else(make, gpu, measured) -> None:
    speed = predicted(make())
    speed()
    with pytest.raises(ValueError, match="predicted but not measured"):
        speed.check(measured)


def test_check_before_the_experiment_ran(make, gpu) -> None:
    with pytest.raises(ExperimentError, match=r"call speed\(\) before"):
        predicted(make()).check({"Copy": 1})


def test_missing_record(make, gpu) -> None:
    gpu(0)
    with pytest.raises(ExperimentError, match=r"speed\.json is missing.*python -m utils\.record"):
        make()()


def test_stale_record(make, recorded) -> None:
    with pytest.raises(ExperimentError, match=r"stale.*python -m utils\.record"):
        make("return {'x': 1.5 + 0}")()


def test_a_comment_does_not_make_a_record_stale(make, recorded) -> None:
    make("# a remark\n\n    return {'x': 1.5}")()


def test_result_is_checked_when_live(make, gpu) -> None:
    with pytest.raises(ExperimentError, match="is a set"):
        make("return {'x': {1}}")()


def test_arguments_are_refused() -> None:
    with pytest.raises(ExperimentError, match="takes arguments"):
        Experiment(lambda n: n, ["cpu"])


def test_hardware_that_disappears_before_the_call(make, recorded, gpu) -> None:
    gpu(1)
    speed = make()
    gpu(0)
    with pytest.raises(ExperimentError, match="hardware has disappeared"):
        speed()


def test_hardware_that_disappears_during_the_call(make, recorded, gpu) -> None:
    gpu(1)
    speed = make("raise RuntimeError('No CUDA GPUs are available')")
    with pytest.raises(ExperimentError, match="its GPU disappeared"):
        speed()


def test_other_failures_are_shown_as_they_are(make, recorded, gpu) -> None:
    gpu(1)
    with pytest.raises(RuntimeError, match="out of memory"):
        make("raise RuntimeError('CUDA out of memory')")()


def test_mode_live_never_replays(make, recorded, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_EXPERIMENTS", "live")
    with pytest.raises(ExperimentError, match="cannot run: no CUDA GPU here"):
        make()()


def test_mode_replay_never_measures(make, recorded, gpu, monkeypatch, capsys) -> None:
    gpu(1)
    monkeypatch.setenv("BOOK_EXPERIMENTS", "replay")
    make()()
    assert "replayed from" in capsys.readouterr().out


def test_mode_new_measures_only_what_has_no_fresh_record(
    make, recorded, gpu, monkeypatch, capsys
) -> None:
    gpu(1)
    monkeypatch.setenv("BOOK_EXPERIMENTS", "new")
    fresh = make()
    fresh()
    assert "(BOOK_EXPERIMENTS=new)" in capsys.readouterr().out
    assert make("return {'x': 2.5}")() == {"x": 2.5}, "its record is stale"
    fresh = make()
    fresh.path.unlink()
    fresh()
    assert capsys.readouterr().out.count("live on") == 2


def test_unknown_mode(make, gpu, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_EXPERIMENTS", "maybe")
    with pytest.raises(ExperimentError, match="use auto, live, new or replay"):
        make()()


def test_recording_keeps_what_cannot_run_here(make, recorded, tmp_path, monkeypatch) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    monkeypatch.setenv("BOOK_RECORD_TO", str(staging))
    make()()
    assert (staging / "speed.json").read_text() == recorded.read_text()
