"""Live or replayed, and every way in which that can go wrong."""

import json
import sys
import textwrap

import pytest

from utils import experiment as module
from utils.experiment import ExperimentError, Experiment, check_json, load_record, missing

PROVENANCE = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "gpu_count": 1,
    "driver": "580.1",
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "cudnn": 91900,
    "python": "3.12.3",
    "cpu": "a CPU",
    "cpu_cores": 16,
    "date": "2026-11-20",
}
SOURCE = """
from utils.experiment import experiment

@experiment(needs={needs!r})
def speed():
    {body}
"""


@pytest.fixture(autouse=True)
def book(tmp_path, monkeypatch):
    """An empty book, with its records folder and no recording under way."""
    records = tmp_path / "book" / "records"
    records.mkdir(parents=True)
    monkeypatch.setattr(module, "RECORDS", records)
    monkeypatch.delenv("BOOK_RECORD_TO", raising=False)
    monkeypatch.delenv("BOOK_EXPERIMENTS", raising=False)
    return tmp_path


@pytest.fixture
def gpu(monkeypatch):
    """A machine that claims one GPU; returns the setter of the count."""

    def set_count(count: int) -> None:
        monkeypatch.setattr(module.device, "gpu_count", lambda: count)
        monkeypatch.setattr(module.device, "capability", lambda: (9, 0))
        here = {**PROVENANCE, "gpu": "Another GPU" if count else None, "gpu_count": count}
        monkeypatch.setattr(module.device, "provenance", lambda: here)

    set_count(1)
    return set_count


def make(book, body: str = "return {'x': 1.5}", needs: str = "cuda") -> Experiment:
    """Import an experiment from a file of its own, as from a notebook's cell."""
    file = book / "cell.py"
    file.write_text(textwrap.dedent(SOURCE.format(needs=needs, body=body)))
    sys.modules.pop("cell", None)
    sys.path.insert(0, str(book))
    try:
        import cell
    finally:
        sys.path.remove(str(book))
    return cell.speed


@pytest.fixture
def recorded(book, gpu, monkeypatch):
    """The record that a GPU machine left, on a machine that now has no GPU."""
    monkeypatch.setenv("BOOK_RECORD_TO", str(module.RECORDS))
    make(book)()
    monkeypatch.delenv("BOOK_RECORD_TO")
    gpu(0)
    return module.RECORDS / "speed.json"


def test_runs_live_where_the_hardware_is(book, gpu, capsys) -> None:
    assert make(book)() == {"x": 1.5}
    assert capsys.readouterr().out == "live on Another GPU, torch 2.11.0+cu130, 2026-11-20\n"
    assert not list(module.RECORDS.iterdir()), "a live run outside the recorder writes nothing"


def test_replays_elsewhere_and_says_so(book, recorded, capsys) -> None:
    capsys.readouterr()
    assert make(book)() == {"x": 1.5}
    out = capsys.readouterr().out
    assert out.startswith("replayed from ") and "Another GPU" in out and "no CUDA GPU here" in out


def test_live_and_replayed_results_have_the_same_types(book, gpu) -> None:
    assert make(book, "return {'pair': (1, 2)}")() == {"pair": [1, 2]}


def test_reference_is_shown_beside_a_live_result(book, recorded, gpu) -> None:
    gpu(1)
    live = make(book)
    live()
    assert live.reference == {"x": 1.5}
    gpu(0)
    replayed = make(book)
    replayed()
    assert replayed.reference is None


def test_missing_record(book, gpu) -> None:
    gpu(0)
    with pytest.raises(ExperimentError, match=r"speed\.json is missing.*python -m utils\.record"):
        make(book)()


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
    ],
)
def test_damaged_record(book, recorded, damage, says) -> None:
    text = recorded.read_text()
    assert damage(text) != text
    recorded.write_text(damage(text))
    with pytest.raises(ExperimentError, match=says) as caught:
        make(book)()
    assert "speed.json" in str(caught.value) and "git checkout" in str(caught.value)


def test_record_under_another_name(book, recorded) -> None:
    copy = recorded.with_name("other.json")
    copy.write_text(recorded.read_text())
    with pytest.raises(ExperimentError, match="holds the experiment 'speed'"):
        load_record(copy)


def test_stale_record(book, recorded) -> None:
    with pytest.raises(ExperimentError, match=r"stale.*python -m utils\.record"):
        make(book, "return {'x': 1.5 + 0}")()


def test_a_comment_does_not_make_a_record_stale(book, recorded) -> None:
    make(book, "# a remark\n\n    return {'x': 1.5}")()


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


def test_result_is_checked_when_live(book, gpu) -> None:
    with pytest.raises(ExperimentError, match="is a set"):
        make(book, "return {'x': {1}}")()


def test_needs(gpu) -> None:
    assert missing(["cpu"]) is None and missing(["cuda", "gpus:1", "sm:9.0"]) is None
    assert "2 needed" in missing(["gpus:2"])
    assert "10.0" in missing(["sm:10.0"])
    gpu(0)
    assert missing(["cpu"]) is None and "no CUDA GPU" in missing(["cuda"])


@pytest.mark.parametrize("need", ["tpu", "gpus:0", "gpus:two", "sm:9", ""])
def test_unknown_need(book, gpu, need) -> None:
    with pytest.raises(ExperimentError, match="unknown need"):
        make(book, needs=need)


def test_arguments_are_refused() -> None:
    with pytest.raises(ExperimentError, match="takes arguments"):
        Experiment(lambda n: n, ["cpu"])


def test_hardware_that_disappears_before_the_call(book, recorded, gpu) -> None:
    gpu(1)
    speed = make(book)
    gpu(0)
    with pytest.raises(ExperimentError, match="hardware has disappeared"):
        speed()


def test_hardware_that_disappears_during_the_call(book, recorded, gpu) -> None:
    gpu(1)
    speed = make(book, "raise RuntimeError('No CUDA GPUs are available')")
    with pytest.raises(ExperimentError, match="its GPU disappeared"):
        speed()


def test_other_failures_are_shown_as_they_are(book, recorded, gpu) -> None:
    gpu(1)
    with pytest.raises(RuntimeError, match="^CUDA out of memory$"):
        make(book, "raise RuntimeError('CUDA out of memory')")()


def test_mode_live_never_replays(book, recorded, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_EXPERIMENTS", "live")
    with pytest.raises(ExperimentError, match="cannot run: no CUDA GPU here"):
        make(book)()


def test_mode_replay_never_measures(book, recorded, gpu, monkeypatch, capsys) -> None:
    gpu(1)
    monkeypatch.setenv("BOOK_EXPERIMENTS", "replay")
    make(book)()
    assert "replayed from" in capsys.readouterr().out


def test_unknown_mode(book, gpu, monkeypatch) -> None:
    monkeypatch.setenv("BOOK_EXPERIMENTS", "maybe")
    with pytest.raises(ExperimentError, match="use auto, live or replay"):
        make(book)()


def test_recording_keeps_the_record_of_what_cannot_run_here(
    book, recorded, tmp_path, monkeypatch
) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    monkeypatch.setenv("BOOK_RECORD_TO", str(staging))
    make(book)()
    assert (staging / "speed.json").read_text() == recorded.read_text()


def test_saved_record_is_one_that_loads(recorded) -> None:
    record = load_record(recorded)
    assert record["needs"] == ["cuda"] and record["provenance"]["gpu"] == "Another GPU"
    assert json.loads(recorded.read_text())["checksum"].startswith("sha256:")
    assert not list(recorded.parent.glob("*.partial"))
