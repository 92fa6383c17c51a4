"""What is made of what ranks write: results, errors that name the culprit, pages."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from utils.ranks import RankError, launcher, logs, start
from utils.ranks.launcher import forgive_cut_reports
from utils.ranks.logs import LAUNCHER, Logs, failed
from utils.record import ROOT, SCRIPTS

BEGIN = "Traceback (most recent call last):\n"
OSERROR = BEGIN + '  File "s.py", line 1\nOSError: gone\n'
OWN = '  File "/x/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py"'
SYNTAX = '  File "s.py", line 1\n    def broken(:\n               ^\nSyntaxError: invalid syntax\n'
CHAINED = f"{BEGIN}  a\nKeyError: 'a'\n\nThe above exception was the direct cause:\n\n{OSERROR}"


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
                (folder / name).write_bytes(text.encode(errors="surrogateescape"))
                os.utime(folder / name, (now - age, now - age))
        return Logs(Path("/s.py"), tmp_path, len(ranks))

    return leave


# --- results -------------------------------------------------------------------------------------


def test_the_last_result_of_a_rank_counts(left) -> None:
    lines = ['{"a": 1}', '{"said": "a\u2028b\x85"}', "[1]", "{not JSON", "caf\udce9\n"]
    run = left("", [("stdout.log", "\n".join(lines), 1)], [("stdout.log", "[1]\n{'no'}", 1)], [])
    assert run.result(0) == {"said": "a\u2028b\x85"}
    for rank in (1, 2):
        with pytest.raises(RankError, match=rf"rank {rank} of s\.py printed no result") as caught:
            run.result(rank)
        assert caught.value.rank == rank
    texts = {"": [], "a\n\nb\n": ["a", "", "b"], "a": ["a"], "{}\n": ["{}"]}
    assert {text: logs.lines_of(text) for text in texts} == texts
    assert logs.result_of("{}") == {}


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["/opt/my env", str(ROOT / ".venv")])
def test_paths_of_this_machine_are_left_out(root) -> None:
    line = f'  File "{root}/lib/python3.11/site-packages/torch/nn.py", line 1, in f'
    assert logs.short(line) == '  File "torch/nn.py", line 1, in f'
    assert logs.short(f"{root}/lib/python3.11/site-packages/torch/nn.py") == "torch/nn.py"
    assert logs.short(f'File "{root}/lib/python3.11/threading.py"') == 'File "threading.py"'
    assert logs.short('File "/usr/lib/dist-packages/a.py"') == 'File "a.py"'
    assert logs.short(f'File "{SCRIPTS}/a.py"') == 'File "a.py"'
    assert logs.short(f'File "{ROOT}/utils/a.py"') == 'File "utils/a.py"'


@pytest.mark.parametrize("begun", ["", '{"message": {"mess'])
def test_a_rank_ended_while_it_wrote_its_exception(tmp_path, monkeypatch, begun) -> None:
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


def test_who_failed_is_known_though_torchrun_fails_after_it(left, monkeypatch) -> None:
    """Seen under load: the store that torchrun leaves last was broken."""

    def main(command: list[str]) -> None:
        try:
            raise ChildFailedError("s.py", {1: ProcessFailure(1, 7, 1, "<N/A>")})
        finally:
            raise MemoryError("std::bad_alloc")

    run = left("", [("stderr.log", "", 9)], [("stderr.log", OSERROR, 1)])
    monkeypatch.setattr("torch.distributed.run.main", main)
    monkeypatch.setattr(launcher, "forgive_cut_reports", lambda: None)
    monkeypatch.setattr("resource.setrlimit", lambda *limit: None)
    assert launcher.launch(os.getppid(), str(run.folder), []) == 1
    error = failed(run)
    assert (error.rank, error.exception) == (1, "OSError: gone")


ERROR, LATER = ("error.json", "{}", 9), OSERROR.replace("OSError", "ValueError")


@pytest.mark.parametrize(
    "codes, ranks, culprit, exception",
    [
        # Rank 1 was killed before rank 0 raised; or by torchrun, 30 s after rank 0 had raised.
        ('{"0": 1, "1": -9}', [[("stderr.log", OSERROR, 1)], [("stderr.log", "", 6)]],
         1, "killed by SIGKILL"),
        ('{"0": 1, "1": -9}', [[("stderr.log", OSERROR, 40)], [("stderr.log", "", 45)]],
         0, "OSError: gone"),
        # It raised before torchrun stopped it. The first to raise may say more later.
        ('{"0": -15, "1": 1}', [[("stderr.log", OSERROR, 9), ERROR], [("stderr.log", LATER, 5)]],
         0, "OSError: gone"),
        ('{"0": -15, "1": 1}', [[("stderr.log", OSERROR, 9)], [("stderr.log", LATER, 5)]],
         1, "ValueError: gone"),
        ('{"0": 1, "1": 1}', [[ERROR, ("stderr.log", OSERROR, 1)],
                              [("error.json", "{}", 5), ("stderr.log", LATER, 5)]],
         0, "OSError: gone"),
        *[(f'{{"0": {code}}}', [[("stderr.log", said, 1)]], 0, exception)
          for code, said, exception in [
              (-15, "", "killed by SIGTERM"), (-35, "", "killed by signal 35"),
              (3, "", "exited with status 3"), (3, "a\nb\n", "b"),
              (1, SYNTAX, "SyntaxError: invalid syntax"), (1, CHAINED, "OSError: gone")]],
    ],
)  # fmt: skip
def test_the_cause_is_named_and_not_its_consequence(left, codes, ranks, culprit, exception) -> None:
    error = failed(left(codes, *ranks))
    assert (error.rank, error.exception) == (culprit, exception)
    assert str(error).startswith(f"rank {culprit} of s.py failed:")
    assert str(error).count(exception) == 1


def test_a_traceback_is_told_whole_but_for_what_is_torchruns(left) -> None:
    said = CHAINED.replace('  File "s.py"', f'{OWN}, line 1, in wrapper\n    ^^^\n  File "s.py"')
    marked = "".join(f"[rank0]: {line}\n" for line in said.splitlines())
    error = failed(left('{"0": 1}', [("stderr.log", f"W1120 warns\n{marked}", 1)]))
    assert error.traceback == CHAINED.rstrip() and str(error).endswith(CHAINED.rstrip())


def test_torchrun_itself_may_fail(left) -> None:
    run = left("")
    error = failed(run)
    assert (error.rank, error.exception) == (None, "and gave up")
    assert str(error) == "torchrun could not run s.py:\ntorchrun began\nand gave up"
    (run.folder / "launcher.log").write_text("")
    assert failed(run).exception == "said nothing"


def test_the_end_of_what_a_killed_rank_said_is_kept(left) -> None:
    lines = [f"line {number}" for number in range(40)]
    run = left('{"0": -9}', [("stderr.log", "\n".join(lines), 1)])
    assert failed(run).traceback.splitlines() == lines[-30:]


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
    run = left("", [("stderr.log", stood, 1), ("stdout.log", "", 1)])
    error = logs.timed_out(run, 2, {0: "sleeping"})
    assert error.stacks == {0: ["work (/s.py:3)", "<module> (/s.py:7)"]}
    stood = "rank 0: work (/s.py:3) < <module> (/s.py:7)"
    assert str(error) == (
        f"s.py did not end within 2 s and was stopped. Its ranks stood at\n  {stood}"
    )


def test_ranks_that_do_not_come_to_the_script_show_what_torchrun_said(left) -> None:
    error = logs.timed_out(left("", [("stdout.log", "", 1)]), 100, {0: "sleeping"})
    assert "rank 0: (it had not come to the script yet)" in str(error)
    assert str(error).endswith("torchrun said\ntorchrun began\nand gave up")


# --- what is shown of it, and when ---------------------------------------------------------------


class Page(io.StringIO):
    """A page, which shows what was printed when it is told to."""

    seen = ""

    def flush(self) -> None:
        self.seen = self.getvalue()


@pytest.fixture
def shown(left, monkeypatch):
    """A function that gives what a page shows after each piece that rank 0 writes, and the end."""

    def watch(*pieces: bytes) -> list[str]:
        run = left("", [("stdout.log", "", 0)])
        page, to_come, said = Page(), list(pieces), []
        monkeypatch.setattr(sys, "stdout", page)

        def wait(timeout: float) -> None:
            said.append(page.seen)
            if to_come:
                with open(run.path(0, "stdout.log"), "ab") as file:
                    file.write(to_come.pop(0))
                if to_come:
                    raise subprocess.TimeoutExpired("the launcher", timeout)

        assert start._watch(SimpleNamespace(wait=wait), run, 100, quiet=False)
        return [*said[1:], page.getvalue()]

    return watch


def test_lines_are_shown_when_they_are_whole_and_the_last_one_at_the_end(shown) -> None:
    pieces = [b"one\ntw", b"o\n", b"{'no': JSON}\n{\"a\"", b": 1}\n{}\ncaf\xe9"]
    assert shown(*pieces) == [
        "one\n",
        "one\ntwo\n",
        "one\ntwo\n{'no': JSON}\n",
        "one\ntwo\n{'no': JSON}\ncaf\N{REPLACEMENT CHARACTER}\n",
    ]


@pytest.mark.parametrize(
    "text, kept",
    [
        (b"1234\n1234\n1\n2\n", ["1234", "1234"]),
        (b"1234\n12345\n2\n", ["1234"]),  # the second line would end exactly at the limit
    ],
)
def test_what_a_page_cannot_hold_is_left_out_once(shown, monkeypatch, text, kept) -> None:
    monkeypatch.setattr(start, "SHOWN", 10)
    (said,) = shown(text)
    assert said.splitlines()[:-1] == kept
    assert "the rest is not shown" in said.splitlines()[-1]
