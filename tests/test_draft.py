"""A chapter can be drafted where its experiments cannot run."""

import subprocess

import pytest

from conftest import module
from utils.record import NOTICE, ExperimentError, NotRecorded, never_recorded, recorded


@pytest.fixture
def repository(book):
    """The throw-away book in a git repository of its own."""
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(book)]
    subprocess.run([*run, "init", "-q"], check=True)
    (book / "README.md").write_text("A book.")
    subprocess.run([*run, "add", "README.md"], check=True)
    subprocess.run([*run, "commit", "-qm", "A book"], check=True)
    return run


def test_whatever_is_done_with_a_placeholder_goes_on() -> None:
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
    assert card.rows()[0][2] == "not measured" and card.lines == [f"{NOTICE}: speed"]
    assert speed.where == NOTICE and "gpu" in speed.provenance
    assert isinstance(recorded("speed").result, NotRecorded)


@pytest.mark.parametrize("mode", ["live", "replay"])
def test_whoever_asks_for_live_or_replayed_gets_no_draft(make, gpu, repository, monkeypatch, mode):
    gpu(0)
    monkeypatch.setenv("BOOK_EXPERIMENTS", mode)
    with pytest.raises(ExperimentError):
        make()()
    if mode == "replay":
        with pytest.raises(ExperimentError, match="missing"):
            recorded("speed")


def test_a_record_that_was_removed_is_no_draft(make, recorded, repository) -> None:
    assert not never_recorded(recorded), "it is there, though git does not know it yet"
    subprocess.run([*repository, "add", "."], check=True)
    subprocess.run([*repository, "commit", "-qm", "A record"], check=True)
    recorded.unlink()
    subprocess.run([*repository, "commit", "-qam", "Removed"], check=True)
    assert not never_recorded(recorded)
    with pytest.raises(ExperimentError, match="missing"):
        make()()


@pytest.mark.parametrize(
    "error", [FileNotFoundError("no git here"), subprocess.TimeoutExpired("git", 30)]
)
def test_where_git_cannot_tell_nothing_is_a_draft(tmp_path, monkeypatch, error) -> None:
    def run(*arguments, **options):
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert never_recorded(tmp_path / "speed.json") is False


def test_without_git_nothing_is_a_draft(make, gpu) -> None:
    gpu(0)
    assert not never_recorded(module.RECORDS / "speed.json")
    with pytest.raises(ExperimentError, match="missing"):
        make()()
