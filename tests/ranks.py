"""What tests of ranks share: scripts for them, a launcher that starts at once, nothing left."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import forks
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
    forks.address()  # its server outlives the test
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


@pytest.fixture
def forked(monkeypatch) -> None:
    """torchrun() forks its launcher, for tests of what it makes of the ranks and their ends.

    Tests of how the launcher starts and ends, and one of each kind besides, start the real one.
    """
    starts_with(monkeypatch, forks.Popen)


@pytest.fixture
def forked_ranks(forked, monkeypatch) -> None:
    """The launcher forks its ranks, too."""
    monkeypatch.setenv(forks.FORK, "ranks")


def starts_with(monkeypatch, start: Callable) -> None:
    """Let torchrun() start its launcher by ``start`` instead of ``subprocess.Popen``."""
    fields = {**vars(subprocess), "Popen": start}
    monkeypatch.setattr(distributed, "subprocess", SimpleNamespace(**fields))


quick = pytest.mark.usefixtures("forked")
quicker = pytest.mark.usefixtures("forked_ranks")
