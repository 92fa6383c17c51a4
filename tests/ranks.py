"""What tests of ranks share: scripts for them, a launcher that starts at once, nothing left."""

import functools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from utils.ranks import launcher
from utils.ranks import start as distributed

MARK = "BOOK_TEST_RUN"


@pytest.fixture
def script(tmp_path):
    def write(text: str, name: str = "script.py") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.fixture
def nothing_left(monkeypatch):
    """No process that the test started may outlive it; gives a function that finds them."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv(MARK, mark)
    yield lambda: _marked(mark)
    assert not _marked(mark), "processes left behind"


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            own = process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE
            if not own and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
    return found


def until(condition, otherwise: str, seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)


class Forked:
    """A process as a fork of this one, which has imported what would take it two seconds.

    It has what torchrun() asks of a ``subprocess.Popen``. Its memory holds the environment it was
    given, but /proc still shows this process's; so it looks itself whether it has ended.
    """

    def __init__(self, act: Callable[[], int | None], env: dict, stdout: int, stderr: int) -> None:
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(stdout, 1)
                os.dup2(stderr, 2)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                os.environ.clear()
                os.environ.update(env)
                status = act() or 0
            except BaseException as error:
                status = error.code if isinstance(error, SystemExit) else 1
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 1)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("the launcher", timeout)
            time.sleep(0.01)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def forked(monkeypatch):
    """torchrun() forks its launcher, for tests of what it makes of the ranks and their ends.

    Tests of how the launcher starts and ends, and one of each kind besides, start the real one.
    """
    import torch.distributed.elastic.agent.server.local_elastic_agent
    import torch.distributed.run  # noqa: F401

    started = []

    def start(command, *, env, stdin, stdout, stderr, start_new_session) -> Forked:
        assert command[:3] == [sys.executable, "-m", "utils.ranks.launcher"] and start_new_session
        assert (stdin, stderr) == (subprocess.DEVNULL, subprocess.STDOUT)
        parent, folder, *rest = command[3:]
        act = functools.partial(launcher.launch, int(parent), folder, rest)
        started.append(Forked(act, env, stdout.fileno(), stdout.fileno()))
        return started[-1]

    starts_with(monkeypatch, start)
    yield
    assert started and all(launcher.returncode is not None for launcher in started)


def starts_with(monkeypatch, start: Callable) -> None:
    """Let torchrun() start its launcher by ``start`` instead of ``subprocess.Popen``."""
    fields = {**vars(subprocess), "Popen": start}
    monkeypatch.setattr(distributed, "subprocess", SimpleNamespace(**fields))


quick = pytest.mark.usefixtures("forked")
