"""Nothing is left of a run: of stubborn ranks, of what they start, after an interrupt or a kill."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest

from ranks import Forked, quick, until
from utils.ranks import RankError, RankTimeout, launcher, processes, torchrun
from utils.record import ROOT

pytestmark = pytest.mark.usefixtures("nothing_left")


@quick
def test_rank_that_ignores_signals_is_stopped_too(script, monkeypatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1)
    stubborn = (
        "import signal, time, subprocess\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '200'])\n"
        "time.sleep(100)"
    )
    with pytest.raises(RankTimeout):  # idle: so both have come to their last line
        torchrun(script(stubborn), ranks=2, device="cpu", idle=1)


@quick
def test_nothing_is_left_of_a_rank_that_started_something_and_went(script) -> None:
    text = (
        "import subprocess\nsubprocess.Popen(['sleep', '200'], start_new_session=True)\nprint('{}')"
    )
    assert torchrun(script(text), ranks=1, device="cpu") == [{}]


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
    with _interruptible():
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            torchrun(script("import time; time.sleep(100)"), ranks=2, device="cpu", timeout=200)
    thread.join()


@contextlib.contextmanager
def _interruptible():
    """SIGINT raises KeyboardInterrupt, as in a kernel that runs a cell.

    What a shell starts in the background begins with SIGINT ignored, and then Python leaves it so.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("there", [2, 4], ids=["launcher starting", "ranks running"])
def test_nothing_outlives_a_kernel_that_was_killed(
    there, script, nothing_left, monkeypatch, tmp_path
) -> None:
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


def test_launcher_is_gone_before_the_folder_it_writes_into(tmp_path) -> None:
    def busy() -> None:
        nobody = -1  # so the kernel is gone
        threading.Thread(target=launcher.follow, args=[nobody, str(folder)]).start()
        for number in itertools.count():
            with contextlib.suppress(FileNotFoundError):
                (folder / str(number)).touch()

    folder = tmp_path / "logs"
    folder.mkdir()
    with open(os.devnull, "wb") as nowhere:
        process = Forked(busy, {}, nowhere.fileno(), nowhere.fileno())
    try:
        until(lambda: process.poll() is not None, "the launcher is still there")
        assert process.returncode == -signal.SIGKILL
        until(lambda: not folder.exists(), "the folder of the logs is left")
    finally:
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize("kernel_lives", [True, False])
def test_launcher_whose_ranks_have_ended_leaves_the_folder_to_who_is_there(
    kernel_lives, monkeypatch, tmp_path
) -> None:
    done = threading.Event()

    def follows(parent: int, folder: str) -> None:
        done.wait(0.5)
        done.set()

    monkeypatch.setattr(launcher, "follow", follows)
    monkeypatch.setattr("torch.distributed.run.main", lambda command: None)
    monkeypatch.setattr("resource.setrlimit", lambda *limits: None)
    assert launcher.launch(os.getppid() if kernel_lives else -1, str(tmp_path), []) == 0
    assert done.is_set() != kernel_lives
    done.set()
