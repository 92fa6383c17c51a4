"""What tests of ranks share: scripts for them, a launcher that starts at once, nothing left."""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from forked import Forked, start_rank
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


def forks_compute_gradients() -> bool:
    """Whether forks of this process can: not after a backward pass within another one here."""
    import torch

    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, requires_grad=True).sum().backward()
        except RuntimeError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def forked(monkeypatch):
    """torchrun() forks its launcher, for tests of what it makes of the ranks and their ends.

    Tests of how the launcher starts and ends, and one of each kind besides, start the real one.
    """
    import torch.distributed.elastic.agent.server.local_elastic_agent
    import torch.distributed.run  # noqa: F401

    if not forks_compute_gradients():  # then all are real processes
        yield
        return
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


@pytest.fixture
def forked_ranks(forked, monkeypatch):
    """The launcher forks its ranks, too: for scripts that come to their end."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    monkeypatch.setattr(subprocess_handler, "Popen", start_rank)


def starts_with(monkeypatch, start: Callable) -> None:
    """Let torchrun() start its launcher by ``start`` instead of ``subprocess.Popen``."""
    fields = {**vars(subprocess), "Popen": start}
    monkeypatch.setattr(distributed, "subprocess", SimpleNamespace(**fields))


quick = pytest.mark.usefixtures("forked")
quicker = pytest.mark.usefixtures("forked_ranks")
