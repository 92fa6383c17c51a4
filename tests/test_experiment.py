"""Live or replayed, or still a draft, and every way in which that can go wrong."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from utils.cards import Card
from utils.record import Experiment, ExperimentError, NotRecorded, load_record, never_recorded
from utils.record import recorded as by_name
from utils.record.missing import NOTICE, missing

LINE = "Another GPU, torch 2.11.0+cu130, 2026-11-20"


def test_runs_live_where_the_hardware_is(make, gpu, book, capsys) -> None:
    assert make("return {'pair': (1, 2)}")() == {"pair": [1, 2]}, "as it would be replayed"
    assert capsys.readouterr().out == f"live on {LINE}\n"
    assert not list(book.rglob("*.json")), "a live run outside the recorder writes nothing"


def test_replays_elsewhere_and_says_so(make, recorded, capsys) -> None:
    capsys.readouterr()
    assert make()() == {"x": 1.5}
    assert capsys.readouterr().out == f"replayed from speed.json: {LINE} (no CUDA GPU here)\n"


def test_a_recorded_page_says_measured_on(make, recorded, recording, gpu, capsys) -> None:
    for count in (0, 1):
        gpu(count)
        capsys.readouterr()
        before = recorded.read_text()
        with recording():
            make()()
        assert capsys.readouterr().out == f"measured on {LINE}\n"
        assert recorded.read_text() == before, "what cannot run here is kept as it is"


def test_what_is_only_replayed_is_not_recorded_again(make, recorded, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BOOK_RECORD_TO", str(tmp_path))
    make()()
    assert not (tmp_path / "speed.json").exists()
    monkeypatch.setenv("BOOK_EXPERIMENTS", "new")
    make("return {'x': 1.5}", needs="cpu")()
    assert load_record(tmp_path / "speed.json")["needs"] == ["cpu"], "another experiment"


def test_a_page_that_changes_its_result_does_not_change_the_record(make, gpu, recording, book):
    speed = make("return {'x': [1.5]}")
    with recording():
        speed()["x"].append(2.5)
        speed.check({})
    assert load_record(speed.path)["result"] == {"x": [1.5]}


def test_reference_is_what_the_record_holds_beside_a_live_result(make, recorded, gpu) -> None:
    for count, reference in ((1, {"x": 1.5}), (0, None)):
        gpu(count)
        speed = make()
        speed()
        assert speed.reference == reference


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
def test_datasheet_of_the_gpu_that_measured(make, gpu, name, guess, found) -> None:
    gpu(1, gpu=name)
    sheet = make().gpu(guess)
    assert (sheet and sheet.name) == found


@pytest.mark.parametrize("count, most", [(1, 1), (3, 2), (4, 4), (16, 8)])
def test_the_most_gpus_that_pages_compare(make, gpu, count, most) -> None:
    gpu(1, gpu_count=count)
    assert make().most_gpus == most


# --- what cannot be run or replayed --------------------------------------------------------------


def test_a_stale_record_is_an_error_and_a_comment_makes_none_stale(make, recorded) -> None:
    make("# a remark\n\n    return {'x': 1.5}")()
    with pytest.raises(ExperimentError, match=r"stale.*has cuda: python -m utils\.record"):
        make("return {'x': 1.5 + 0}")()


def test_arguments_and_results_that_json_cannot_hold_are_refused(make, gpu) -> None:
    with pytest.raises(ExperimentError, match="takes arguments"):
        Experiment(lambda n: n, ["cpu"])
    with pytest.raises(ExperimentError, match="is a set"):
        make("return {'x': {1}}")()


def test_hardware_that_disappears(make, recorded, gpu) -> None:
    """Before the call, or during it; other failures are shown as they are."""
    gpu(1)
    speed = make()
    gpu(0)
    with pytest.raises(ExperimentError, match="hardware has disappeared"):
        speed()
    gpu(1)
    for said in ("No CUDA GPUs are available", "the device is lost", "NVIDIA driver too old"):
        with pytest.raises(ExperimentError, match="its GPU disappeared"):
            make(f"raise RuntimeError({said!r})")()
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory"):
        make("raise RuntimeError('CUDA out of memory')")()


def test_modes(make, recorded, gpu, monkeypatch, capsys) -> None:
    monkeypatch.setenv("BOOK_EXPERIMENTS", "live")
    with pytest.raises(ExperimentError, match="cannot run: no CUDA GPU here"):
        make()()
    monkeypatch.setenv("BOOK_EXPERIMENTS", "maybe")
    with pytest.raises(ExperimentError, match="use auto, live, new or replay"):
        make()()
    gpu(1)
    for mode in ("replay", "new"):  # its record is fresh
        monkeypatch.setenv("BOOK_EXPERIMENTS", mode)
        make()()
        assert f"(BOOK_EXPERIMENTS={mode})" in capsys.readouterr().out
    assert make("return {'x': 2.5}")() == {"x": 2.5}, "its record is stale"
    recorded.unlink()
    make()()
    assert capsys.readouterr().out.count("live on") == 2


# --- predictions ---------------------------------------------------------------------------------


@pytest.fixture
def predicted(make, gpu, recording):
    """A function that makes, calls and checks the experiment: its page says what it is given."""

    def predicted(page: dict[str, float], measured: dict[str, float], **later: float) -> Card:
        speed = make()
        for quantity, value in page.items():
            speed.predict(quantity, value, "GB/s", because="the bus")
        speed()
        for quantity, value in later.items():
            speed.predict(quantity, value, "GB/s", because="headers, too", later=True)
        return speed.check(measured)

    return predicted


@pytest.fixture
def pair_recorded(predicted, recording, gpu, book):
    """A record with a prediction, on a machine that now has no GPU; returns its ledger."""
    with recording():
        predicted({"Copy": 2}, {"Copy": 1.5})
    gpu(0)
    return lambda: load_record(book / "book" / "records" / "speed.json")["ledger"]


COPY = {"quantity": "Copy", "unit": "GB/s", "predicted": 2.0, "measured": 1.5, "because": "the bus"}


def test_a_prediction_prints_nothing_and_the_card_says_it_all(predicted, capsys) -> None:
    card = predicted({"Copy": 2}, {"Copy": 1.5})
    assert capsys.readouterr().out == ""
    assert card.rows() == [["Copy", "2.00 GB/s", "1.50 GB/s", "✗ 0.75 miss"]]
    assert card.lines == [f"live on {LINE}"]


def test_the_record_keeps_the_pair_and_a_page_need_not_say_it_again(predicted, pair_recorded):
    assert pair_recorded() == [COPY] and list(pair_recorded()[0]) == list(COPY)
    for page in ({}, {"Copy": 2}):
        card = predicted(page, {"Copy": 1.5})
        assert card.entries == [COPY] and card.lines[0].startswith("replayed from ")
    with pytest.raises(ValueError, match=r"predicted but not measured: \['Copy'\]"):
        predicted({}, {})


def test_a_page_replaces_what_the_record_keeps(predicted, pair_recorded, recording, gpu) -> None:
    with pytest.raises(ExperimentError, match=r"predicted 3.00 GB/s.*keeps.*predicted 2.00 GB/s"):
        predicted({"Copy": 3}, {"Copy": 1.5})
    gpu(1)
    card = predicted({"Copy": 3}, {"Copy": 6.0})
    assert card.rows()[0][1:] == ["3.00 GB/s", "6.00 GB/s", "✗ 2.00 miss", "1.50 GB/s"]
    with recording():
        predicted({"Copy": 3, "Send": 4}, {"Copy": 1.5, "Send": 4})
    assert [entry["predicted"] for entry in pair_recorded()] == [3, 4]


def test_recording_again_drops_none(make, predicted, pair_recorded, recording, gpu) -> None:
    """Not those which a page forgets to check, nor those which this GPU cannot measure."""
    with recording():
        predicted({}, {"Copy": 1.5})
    assert pair_recorded() == [COPY], "replayed"
    gpu(1)
    with recording():
        make()()
        assert pair_recorded() == [{**COPY, "measured": None}]
        card = predicted({}, {"Copy": float("nan")})
        assert card.rows()[0][2:] == ["not measured", "· open"]
        assert pair_recorded() == [{**COPY, "measured": None}]
    gpu(0)
    assert predicted({}, {"Copy": float("nan")}).rows() == card.rows()
    with recording():
        predicted({}, {"Copy": 1.25}, Copy=1.3)
    assert pair_recorded() == [
        {**COPY, "measured": 1.25},
        {**COPY, "predicted": 1.3, "measured": 1.25, "because": "headers, too", "later": True},
    ]
    assert [row[0] for row in predicted({}, {"Copy": 1.25}).rows()] == ["Copy", "later: Copy"]


def test_other_measurements_than_recorded_are_an_error(predicted, pair_recorded) -> None:
    predicted({}, {"Copy": 1.5 * (1 + 1e-10)})  # another mathematical library
    with pytest.raises(ExperimentError, match=r"measured 1.60 GB/s.*keeps.*measured 1.50 GB/s"):
        predicted({}, {"Copy": 1.6})
    for other in (1.5 * (1 + 1e-8), float("nan")):
        with pytest.raises(ExperimentError, match="the record keeps 'Copy'"):
            predicted({}, {"Copy": other})


def test_the_reference_machine_stands_beside_a_live_result(predicted, pair_recorded, gpu) -> None:
    gpu(1, gpu="My GPU")
    card = predicted({}, {"Copy": 4.0})
    assert card.rows()[0][-2:] == ["✗ 2.00 miss", "1.50 GB/s"]
    assert [line.split(",")[0] for line in card.lines] == [
        "live on My GPU",
        "reference: Another GPU",
    ]


def test_a_later_prediction_needs_a_first_one(predicted) -> None:
    with pytest.raises(ExperimentError, match="later than what"):
        predicted({"Copy": 2}, {}, Send=1.6)


def test_a_prediction_after_the_call_says_that_it_came_later(make, gpu) -> None:
    speed = make()
    speed.predict("Copy", 2, "GB/s", because="the bus")
    speed()
    with pytest.raises(ExperimentError, match="later=True"):
        speed.predict("Send", 1.6, "GB/s", because="headers, too")
    speed.predict("Copy", 2, "GB/s", because="the bus")  # its cell can be run twice
    assert len(speed.check({"Copy": 1.5}).entries) == 1


@pytest.mark.parametrize("measured", [{}, {"Copy": 1, "More": 2}, {"Cpoy": 1}])
def test_every_prediction_is_checked_and_nothing_else(predicted, measured) -> None:
    with pytest.raises(ValueError, match="predicted but not measured"):
        predicted({"Copy": 2}, measured)


def test_check_before_the_experiment_ran(make, gpu) -> None:
    with pytest.raises(ExperimentError, match=r"call speed\(\) before"):
        make().check({})


# --- drafts --------------------------------------------------------------------------------------


@pytest.fixture
def repository(book):
    """The throw-away book in a git repository of its own; returns git."""

    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(book), *arguments]
        subprocess.run(command, check=True)

    git("init", "-q")
    (book / "README.md").write_text("A book.")
    git("add", "README.md")
    git("commit", "-qm", "A book")
    return git


def test_whatever_is_done_with_what_was_not_recorded_goes_on() -> None:
    x = NotRecorded()
    assert isinstance(2 * x["times"]["copy"].median / 3 + x(1) ** 2, NotRecorded)
    assert x > 3 and x < 3 and x == 1.5 and x >= 3
    assert f"{x:.1f} ms, {x['a']:>8,}" == "— ms, —" and str(x) == "—"
    assert [name for name, value in x.items()] == [] and len(x) == 0
    assert float(x) != float(x) and round(x, 2) is x
    assert NOTICE in repr(x)


def test_an_experiment_that_was_never_recorded(make, gpu, repository, capsys) -> None:
    gpu(0)
    speed = make()
    speed.predict("Copy", 2, "GB/s", because="the bus")
    result = speed()
    assert isinstance(result["x"], NotRecorded)
    assert capsys.readouterr().out == f"{NOTICE}: speed, on a machine that has cuda\n"
    card = speed.check({"Copy": result["x"]})
    assert card.rows() == [["Copy", "2.00 GB/s", "not measured", "· open"]]
    assert card.lines == [f"{NOTICE}: speed"]
    assert speed.where == NOTICE and "gpu" in speed.provenance
    assert isinstance(by_name("speed").result, NotRecorded)


def test_what_a_draft_lets_predict_is_recorded_with_it_not_before(make, gpu, recording) -> None:
    speed = make()
    speed.predict("Copy", NotRecorded()["x"] / 2, "GB/s", because="half of it")
    with recording():
        card = speed.check({"Copy": speed()["x"]})
    assert card.rows()[0][1] == "—" and load_record(speed.path)["ledger"] == []


@pytest.mark.parametrize("mode", ["live", "replay"])
def test_whoever_asks_for_live_or_replayed_gets_no_draft(make, gpu, repository, monkeypatch, mode):
    gpu(0)
    monkeypatch.setenv("BOOK_EXPERIMENTS", mode)
    with pytest.raises(ExperimentError):
        make()()
    with pytest.raises(ExperimentError, match="missing"):
        by_name("speed")
    monkeypatch.setenv("BOOK_EXPERIMENTS", "new")
    assert isinstance(make()(), NotRecorded)


def test_a_record_that_was_removed_or_is_on_another_branch_is_no_draft(make, recorded, repository):
    assert not never_recorded(recorded), "it is there, though git does not know it yet"
    repository("checkout", "-qb", "other")
    repository("add", ".")
    repository("commit", "-qm", "A record")
    (recorded.parent / "notes").touch()  # or git removes the folder, too
    repository("checkout", "-q", "-")
    assert not recorded.exists() and not never_recorded(recorded)
    with pytest.raises(ExperimentError, match="missing"):
        make()()


@pytest.mark.parametrize(
    "error", [None, FileNotFoundError("git"), subprocess.TimeoutExpired("", 30)]
)
def test_where_git_cannot_tell_nothing_is_a_draft(make, gpu, monkeypatch, error) -> None:
    def run(*arguments, **options):
        raise error

    if error:
        monkeypatch.setattr(subprocess, "run", run)
    gpu(0)
    with pytest.raises(ExperimentError, match=r"speed\.json is missing.*python -m utils\.record"):
        make()()


# --- needs ---------------------------------------------------------------------------------------


def test_needs(gpu, monkeypatch) -> None:
    assert missing(["cpu"]) is None and missing(["cuda", "gpus:1", "sm:9.0"]) is None
    assert (missing(["linux"]) is None) == (sys.platform == "linux")
    assert (missing(["triton"]) is None) == (find_spec("triton") is not None)
    assert (missing(["torchao"]) is None) == (find_spec("torchao") is not None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no C++ compiler" in missing(["c++"])
    assert missing(["cpu", "gpus:2"]) == "1 GPU here, 2 needed"
    assert missing(["sm:10.0"]) == "needs compute capability 10.0"
    gpu(0)
    assert missing(["cpu"]) is None and "no CUDA GPU" in missing(["cuda"])


@pytest.mark.parametrize("need", ["tpu", "gpus:0", "gpus:two", "sm:9", ""])
def test_unknown_need(make, gpu, need) -> None:
    with pytest.raises(ExperimentError, match="unknown need"):
        make(needs=need)
