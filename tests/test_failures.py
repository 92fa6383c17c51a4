"""Ranks that fail: the culprit is named, with its traceback as a reader would write it."""

import json
import os
import signal
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from ranks import MEETS, quick
from utils.ranks import RankError, torchrun
from utils.ranks import logs as failures
from utils.ranks.launcher import forgive_cut_reports
from utils.ranks.logs import LAUNCHER, Logs
from utils.record import ROOT, SCRIPTS

pytestmark = pytest.mark.usefixtures("nothing_left")

RAISES = """
import os, time
def share(rank):
    if rank == 1:
        raise ValueError("rank one's fault")
    time.sleep(30)
share(int(os.environ["RANK"]))
"""


@quick
def test_first_failing_rank_is_named_with_its_traceback(script) -> None:
    with pytest.raises(RankError) as caught:
        torchrun(script(RAISES), ranks=2, device="cpu", timeout=200)
    error = caught.value
    assert error.rank == 1 and error.exception == "ValueError: rank one's fault"
    assert "in share" in str(error) and "torch/distributed/run" not in str(error)


@quick
def test_the_cause_is_named_and_not_its_consequence(script) -> None:
    """Rank 0 fails too, within a moment: its peer is gone."""
    with pytest.raises(RankError) as caught:
        torchrun(script(MEETS), "raise", ranks=2, device="cpu", timeout=200)
    assert caught.value.rank == 1 and caught.value.exception == "ValueError: rank one's fault"
    assert "errors/__init__.py" not in str(caught.value)


@pytest.mark.parametrize("root", ["/opt/my env", str(ROOT / ".venv")])
def test_paths_of_this_machine_are_left_out(root) -> None:
    line = f'  File "{root}/lib/python3.11/site-packages/torch/nn.py", line 1, in f'
    assert failures.short(line) == '  File "torch/nn.py", line 1, in f'
    assert failures.short(f"{root}/lib/python3.11/site-packages/torch/nn.py") == "torch/nn.py"
    assert failures.short(f'File "{root}/lib/python3.11/threading.py"') == 'File "threading.py"'
    assert failures.short('File "/usr/lib/dist-packages/a.py"') == 'File "a.py"'
    assert failures.short(f'File "{SCRIPTS}/a.py"') == 'File "a.py"'
    assert failures.short(f'File "{ROOT}/utils/a.py"') == 'File "utils/a.py"'


@quick
def test_rank_killed_by_a_signal(script) -> None:
    with pytest.raises(RankError) as caught:
        torchrun(script(MEETS), "die", ranks=2, device="cpu", timeout=200)
    assert (caught.value.rank, caught.value.exception) == (1, "killed by SIGKILL")


@pytest.mark.parametrize("begun", ["", '{"message": {"mess'])
def test_a_rank_ended_while_it_wrote_its_exception_has_its_exit_code(
    tmp_path, monkeypatch, begun
) -> None:
    """Seen under load: torchrun failed on the file, and named nobody."""
    read = ProcessFailure.__post_init__
    monkeypatch.setattr(ProcessFailure, "__post_init__", read)  # taken back after the test
    report = tmp_path / "error.json"
    report.write_text(begun)
    with pytest.raises(json.JSONDecodeError):
        ProcessFailure(0, 1, -signal.SIGTERM, str(report))
    forgive_cut_reports()
    assert ProcessFailure(0, 1, -signal.SIGTERM, str(report)).exitcode == -signal.SIGTERM
    assert not report.exists()


@pytest.mark.parametrize("seconds_before, culprit", [(1, 1), (40, 0)])
def test_who_was_killed_is_the_cause_unless_torchrun_killed_it(
    tmp_path, seconds_before, culprit
) -> None:
    """Rank 0 raised; rank 1 was killed: by someone, or by torchrun 30 s after rank 0 raised."""
    for rank, said in enumerate(["Traceback (most recent call last):\nOSError: gone\n", ""]):
        folder = tmp_path / "run" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(said)
    report = tmp_path / LAUNCHER
    report.write_text('{"0": 1, "1": -9}')
    raised = report.stat().st_mtime - seconds_before
    os.utime(tmp_path / "run/attempt_0/0/stderr.log", (raised, raised))
    os.utime(tmp_path / "run/attempt_0/1/stderr.log", (raised - 5, raised - 5))
    error = failures.failed(Logs(Path("s.py"), tmp_path, 2))
    assert error.rank == culprit


@quick
@pytest.mark.parametrize("number, name", [(15, "SIGTERM"), (35, "signal 35")])
def test_any_signal_is_named(script, number, name) -> None:
    with pytest.raises(RankError, match=f"killed by {name}"):
        torchrun(script(f"import os; os.kill(os.getpid(), {number})"), ranks=1, device="cpu")


def test_exit_status_without_a_traceback(script) -> None:
    """By the launcher itself, not a fork of it: its own exit status must say so, too."""
    with pytest.raises(RankError, match="exited with status 3"):
        torchrun(script("import os; os._exit(3)"), ranks=1, device="cpu")


@quick
def test_tracebacks_are_not_coloured(script, monkeypatch) -> None:
    """A notebook's kernel sets FORCE_COLOR, and from 3.13 on Python's tracebacks obey it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("PYTHON_COLORS", "1")
    obeys = (  # as Python 3.13 does, on any Python
        "import os, sys\n"
        "color = os.environ.get('PYTHON_COLORS', '1') == '1' and 'NO_COLOR' not in os.environ\n"
        "start, end = ('\\x1b[1;35m', '\\x1b[0m') if color else ('', '')\n"
        "sys.stderr.write('Traceback (most recent call last):\\n  File \"s.py\", line 1\\n')\n"
        "sys.exit(f'{start}ValueError{end}: why')"
    )
    for text in (obeys, "raise ValueError('why')"):
        with pytest.raises(RankError) as caught:
            torchrun(script(text), ranks=1, device="cpu")
        assert caught.value.exception == "ValueError: why"
        assert "\x1b" not in str(caught.value)


@quick
def test_syntax_error(script) -> None:
    with pytest.raises(RankError, match="SyntaxError"):
        torchrun(script("def broken(:"), ranks=1, device="cpu")


@quick
def test_rank_without_a_result(script) -> None:
    silent = "import os\nprint('{}' if os.environ['RANK'] == '0' else '[1]')"
    with pytest.raises(RankError, match=r"rank 1 of script\.py printed no result"):
        torchrun(script(silent), ranks=2, device="cpu")


@quick
def test_chained_exceptions_are_told_whole(script) -> None:
    text = "try:\n    {}['a']\nexcept KeyError as e:\n    raise OSError('outer') from e"
    with pytest.raises(RankError) as caught:
        torchrun(script(text), ranks=1, device="cpu")
    assert caught.value.exception == "OSError: outer"
    assert "KeyError: 'a'" in caught.value.traceback


# --- from what a run left behind -----------------------------------------------------------------

OSERROR = 'Traceback (most recent call last):\n  File "s.py", line 1\nOSError: gone\n'


@pytest.fixture
def left(tmp_path):
    """A function that leaves a run's files: exit codes, and per rank (name, text, age) of each."""

    def leave(codes: str, *ranks: list[tuple[str, str, float]]) -> Logs:
        (tmp_path / "launcher.log").write_text("torchrun began\nand gave up\n")
        if codes:
            (tmp_path / LAUNCHER).write_text(codes)
        now = (tmp_path / "launcher.log").stat().st_mtime
        for rank, files in enumerate(ranks):
            folder = tmp_path / "run" / "attempt_0" / str(rank)
            folder.mkdir(parents=True)
            for name, text, age in files:
                (folder / name).write_text(text)
                os.utime(folder / name, (now - age, now - age))
        return Logs(Path("/s.py"), tmp_path, len(ranks))

    return leave


def test_who_raised_before_torchrun_stopped_it_is_the_cause(left) -> None:
    raised = [("stderr.log", OSERROR, 9), ("error.json", "{}", 9)]
    later = [("stderr.log", OSERROR.replace("OSError", "ValueError"), 5)]
    error = failures.failed(left('{"0": -15, "1": 1}', raised, later))
    assert (error.rank, error.exception) == (0, "OSError: gone")
    assert str(error).count("OSError: gone") == 1


def test_who_raised_first_may_say_more_later(left) -> None:
    first = [("error.json", "{}", 9), ("stderr.log", OSERROR, 1)]
    second = [("error.json", "{}", 5), ("stderr.log", OSERROR, 5)]
    assert failures.failed(left('{"0": 1, "1": 1}', first, second)).rank == 0


def test_torchrun_itself_may_fail(left) -> None:
    logs = left("")
    error = failures.failed(logs)
    assert (error.rank, error.exception) == (None, "and gave up")
    assert str(error) == "torchrun could not run s.py:\ntorchrun began\nand gave up"
    (logs.folder / "launcher.log").write_text("")
    assert failures.failed(logs).exception == "said nothing"


def test_the_end_of_what_a_rank_said_is_kept(left) -> None:
    lines = [f"line {number}" for number in range(40)]
    logs = left('{"0": -9}', [("stderr.log", "\n".join(lines), 1)])
    assert failures.failed(logs).traceback.splitlines() == lines[-30:]
    (logs.folder / LAUNCHER).write_text('{"0": 3}')
    assert failures.failed(logs).exception == "line 39"


def test_where_a_rank_stood_is_told_of_the_thread_that_runs_the_script(left) -> None:
    stood = (
        "Fatal Python error: Aborted\n\n"
        "Thread 0x1 (most recent call first):\n"
        '  File "/s.py", line 9 in pump\n  File "/other.py", line 1 in run\n\n'
        "Thread 0x2 (most recent call first):\n"
        '  File "/other.py", line 2 in <module>\n\n'
        "Current thread 0x3 (most recent call first):\n"
        '  File "/s.py", line 3 in work\n  File "/s.py", line 7 in <module>\n'
    )
    logs = left("", [("stderr.log", stood, 1), ("stdout.log", "", 1)])
    error = failures.timed_out(logs, "hung", {0: "sleeping"})
    assert error.stacks == {0: ["work (/s.py:3)", "<module> (/s.py:7)"]}
    assert str(error).endswith("rank 0: work (/s.py:3) < <module> (/s.py:7)")
