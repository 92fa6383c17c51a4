"""torchrun() from a cell, with real processes: what it gives, and that it leaves nothing behind."""

import io
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import forks
from ranks import quick, starts_with, until
from utils.ranks import RankError, RankTimeout, launcher, processes, start, torchrun
from utils.ranks.logs import Logs
from utils.record import ROOT

pytestmark = pytest.mark.usefixtures("nothing_left")

# Without torch, a rank starts in no time.
HELLO = """
import json, os, sys
print("hello from", os.environ["RANK"])
names = "RANK", "WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "EXTRA"
print(json.dumps({"said": sys.argv[1:], **{name: os.environ.get(name) for name in names}}))
"""


def test_ranks_give_results_and_rank_0_is_heard(script, monkeypatch, tmp_path, capsys) -> None:
    """Also where the host name leads nowhere."""
    nowhere = "import socket\nsocket.gethostname = socket.getfqdn = lambda *_: 'nowhere.invalid'"
    script(nowhere, "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # torchrun has options that begin with --log, too.
    found = torchrun(script(HELLO), "--log", 64, ranks=3, device="cpu", env={"EXTRA": 7})
    same = {"said": ["--log", "64"], "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    same |= {"CUDA_VISIBLE_DEVICES": "", "EXTRA": "7"}
    assert found == [{"RANK": str(rank), **same} for rank in range(3)]
    assert capsys.readouterr().out == "3 ranks of script.py: gloo on CPU\nhello from 0\n"


# --- what the launcher is asked, instead of starting it ------------------------------------------


class Asked(Exception):
    """What the launcher was asked."""


@pytest.fixture
def asked(script, monkeypatch):
    """A function that gives the environment in which ranks would start on two GPUs."""

    def start_none(command, *, env, **how):
        raise Asked(env)

    def ask(**options) -> dict[str, str]:
        with pytest.raises(Asked) as caught:
            torchrun(script(HELLO), **options)
        return caught.value.args[0]

    starts_with(monkeypatch, start_none)
    monkeypatch.setattr(start, "gpu_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return ask


def test_what_ranks_find_in_their_environment(asked, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a notebook's kernel does
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # without it nothing streams
    env = asked(ranks=1)
    assert env["PYTHONPATH"] == f"{ROOT}{os.pathsep}/mine"
    assert env["OMP_NUM_THREADS"] == env["PYTHONUNBUFFERED"] == env["PYTHONFAULTHANDLER"] == "1"
    assert (env["PYTHON_COLORS"], env["NO_COLOR"]) == ("0", "1")
    assert asked(ranks=1, env={"OMP_NUM_THREADS": 2})["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    "ranks, device, said",
    [
        (1, None, "1 rank of script.py: NCCL on 1 GPU"),
        (2, None, "2 ranks of script.py: NCCL on 2 GPUs"),
        (3, None, "3 ranks of script.py: gloo on CPU"),
        (1, "cpu", "1 rank of script.py: gloo on CPU"),
    ],
)
def test_gpus_are_hidden_from_ranks_on_the_cpu(asked, capsys, ranks, device, said) -> None:
    env = asked(ranks=ranks, device=device)
    assert capsys.readouterr().out == f"{said}\n"
    assert env.get("CUDA_VISIBLE_DEVICES") == ("" if "CPU" in said else None)


def test_what_cannot_be_run_is_refused(script) -> None:
    for ranks in (0, -1, 1.0, True, None):  # zero would be a silent success
        with pytest.raises(ValueError, match="at least one"):
            torchrun(script(HELLO), ranks=ranks)
    with pytest.raises(ValueError, match="'cpu'"):
        torchrun(script(HELLO), ranks=1, device="cuda:0")
    with pytest.raises(FileNotFoundError, match=r"no script nowhere\.py; .*\.py"):
        torchrun("nowhere.py", ranks=1)


def test_ranks_get_100_seconds_and_may_not_have_started_by_then(script, monkeypatch) -> None:
    starts_with(monkeypatch, lambda command, **how: subprocess.Popen(["sleep", "100"], **how))
    clock = itertools.count(step=49)
    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(RankTimeout, match="did not end within 100 s") as caught:
        torchrun(script(HELLO), ranks=2, device="cpu")
    assert str(caught.value).count("(it had not started)") == 2
    assert next(clock) >= 3 * 49, "a look at the start, and two within the time"


# --- ranks that fail, hang or stay ---------------------------------------------------------------


@quick
def test_first_failing_rank_is_named_with_its_traceback(script, monkeypatch) -> None:
    for name in ("FORCE_COLOR", "PYTHON_COLORS"):  # from 3.13 on Python's tracebacks obey them
        monkeypatch.setenv(name, "1")
    text = (
        "import os, time\n"
        "def share(rank):\n"
        "    if rank == 1: raise ValueError('its own fault')\n"
        "    time.sleep(30)\n"
        "share(int(os.environ['RANK']))"
    )
    with pytest.raises(RankError) as caught:
        torchrun(script(text), ranks=2, device="cpu", timeout=200)
    error = caught.value
    assert error.rank == 1 and error.exception == "ValueError: its own fault"
    assert "in share" in str(error) and "torch/distributed/run" not in str(error)
    assert "\x1b" not in str(error)


@quick
def test_rank_killed_by_a_signal(script) -> None:
    with pytest.raises(RankError, match="killed by SIGKILL"):
        torchrun(script("import os; os.kill(os.getpid(), 9)"), ranks=1, device="cpu")


def test_exit_status_without_a_traceback(script) -> None:
    """By the launcher itself, not a fork of it: its own exit status must say so, too."""
    with pytest.raises(RankError, match="exited with status 3"):
        torchrun(script("import os; os._exit(3)"), ranks=1, device="cpu")


@pytest.fixture
def hangs(script, monkeypatch, tmp_path):
    """A function that runs a script whose time is over when each of its ranks has said so."""

    def over(launcher: subprocess.Popen, logs: Logs, timeout: float, quiet: bool) -> bool:
        until(lambda: len(list(tmp_path.glob("at-*"))) == logs.ranks, "the ranks never started")
        time.sleep(0.3)  # from saying so to doing it
        return False

    def run(text: str, ranks: int) -> RankTimeout:
        monkeypatch.setattr(start, "_watch", over)
        says = "import os, sys\ndef here(): open(sys.argv[1] + os.environ['RANK'], 'w').close()\n"
        with pytest.raises(RankTimeout, match="did not end within 30 s") as caught:
            torchrun(script(says + text), tmp_path / "at-", ranks=ranks, device="cpu", timeout=30)
        return caught.value

    return run


@quick
def test_of_ranks_that_hang_the_message_says_where_each_stood(hangs) -> None:
    error = hangs(
        "import signal, threading\n"
        "def pause():\n"
        "    here()\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "if os.environ['RANK'] == '1': pause()\n"
        "here()\n"
        "if os.environ['RANK'] == '0': threading.Event().wait()",
        ranks=3,
    )
    waits, paused, ended = (error.stacks[rank] for rank in range(3))
    assert waits[0].startswith("wait (threading.py:") and waits[-1].startswith("<module> (")
    assert paused[0].startswith("pause (") and ended == []
    assert re.search(r"rank 1: pause \(\S+:6\) .*\(stopped by a signal", str(error))
    assert "rank 2: (it had already ended)" in str(error)


@quick
def test_rank_that_ignores_signals_is_stopped_too(hangs, monkeypatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    hangs(
        "import signal, time, subprocess\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '200'])\n"
        "here()\n"
        "time.sleep(100)",
        ranks=2,
    )


@quick
def test_nothing_is_left_of_a_rank_that_started_something_and_went(script, capsys) -> None:
    text = "import subprocess\nsubprocess.Popen(['sleep', '200'], start_new_session=True)\n"
    path = script(f"{text}print('heard')\nprint('{{}}')")
    assert torchrun(path, ranks=1, device="cpu", quiet=True, file=(said := io.StringIO())) == [{}]
    assert (capsys.readouterr().out, said.getvalue()) == ("", "1 rank of script.py: gloo on CPU\n")


@quick
def test_launcher_that_is_killed_takes_its_ranks_along(script) -> None:
    text = "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(200)"
    with pytest.raises(RankError, match="torchrun could not run"):
        torchrun(script(text), ranks=1, device="cpu")


def test_interrupt_stops_the_ranks(script, nothing_left) -> None:
    def interrupt() -> None:
        # The launcher and two ranks are there.
        until(lambda: len(nothing_left()) >= 3, "the ranks never started")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    # As in a kernel that runs a cell: what a shell starts in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            torchrun(script("import time; time.sleep(100)"), ranks=2, device="cpu", timeout=200)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()


@pytest.mark.parametrize("there", [2, 4], ids=["launcher starting", "ranks running"])
def test_nothing_outlives_a_killed_kernel(there, script, nothing_left, monkeypatch, tmp_path):
    path = script("import time; time.sleep(100)")
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "logs"))
    code = f"from utils.ranks import torchrun; torchrun({str(path)!r}, ranks=2, device='cpu')"
    kernel = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    until(lambda: len(nothing_left()) >= there, "the ranks never started")
    kernel.kill()
    kernel.wait()
    # The folder first: who removes it may be born while a list of processes is being made.
    until(lambda: not list((tmp_path / "logs").glob("tmp*")), "the folder of the logs is left")
    until(lambda: not nothing_left(), "ranks outlive the process that started them")


def test_launcher_is_gone_before_the_folder_it_writes_into(nothing_left, tmp_path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    busy = f"""
import contextlib, itertools, pathlib, threading
from utils.ranks import launcher
nobody, folder = -1, pathlib.Path({str(folder)!r})  # so the kernel is gone
threading.Thread(target=launcher.follow, args=[nobody, str(folder)]).start()
for number in itertools.count():
    with contextlib.suppress(FileNotFoundError):
        (folder / str(number)).touch()
"""
    process = forks.Popen([sys.executable, "-c", busy], cwd=ROOT)
    try:
        until(lambda: process.poll() is not None, "the launcher is still there")
        assert process.returncode == -signal.SIGKILL
        until(lambda: not folder.exists(), "the folder of the logs is left")
        until(lambda: not nothing_left(), "who removed the folder outlives it")
    finally:
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize("kernel_lives", [True, False])
def test_who_removes_the_folder_of_ranks_that_ended(kernel_lives, monkeypatch, tmp_path) -> None:
    done, limits = threading.Event(), []

    def follows(parent: int, folder: str) -> None:
        done.wait(0.5)
        done.set()

    monkeypatch.setattr(launcher, "follow", follows)
    monkeypatch.setattr(launcher, "forgive_cut_reports", lambda: None)  # for ever, it would be
    monkeypatch.setattr("torch.distributed.run.main", lambda command: None)
    monkeypatch.setattr("resource.setrlimit", lambda *limit: limits.append(limit))
    assert launcher.launch(os.getppid() if kernel_lives else -1, str(tmp_path), []) == 0
    assert done.is_set() != kernel_lives
    done.set()
    assert limits == [(resource.RLIMIT_CORE, (0, 0))], "an aborted rank may leave a core file"
