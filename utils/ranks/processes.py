"""The processes of a run, whoever their parent is by now: find them, end them."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

PATIENCE = 5  # seconds that processes get to end
MARK = "BOOK_RANKS_OF"  # in the environment of every process of a run: the folder of its logs


def wait_while(there: Callable[[], object]) -> None:
    """Wait until nothing is there any more, but no longer than processes get to end."""
    until = time.monotonic() + PATIENCE
    while there() and time.monotonic() < until:
        time.sleep(0.02)


def abort(launcher: subprocess.Popen) -> dict[int, str]:
    """Make the ranks write down where they stand, and end; return how each was found."""
    try:
        parent = psutil.Process(launcher.pid)
        parent.suspend()  # or it would stop the ranks that are still writing
        ranks = parent.children()
    except psutil.NoSuchProcess:  # it has just ended
        return {}
    left = dict(filter(None, map(_state, ranks)))
    for process in ranks:
        _signal(process, signal.SIGABRT)
        _signal(process, signal.SIGCONT)  # a stopped process would never get to it
    wait_while(lambda: any(map(_runs, ranks)))
    _signal(parent, signal.SIGCONT)
    return left


def _state(process: psutil.Process) -> tuple[int, str] | None:
    """A rank and its state, such as "running" or "stopped"; None if it is none, or has ended."""
    try:
        state = process.status()
        rank = process.environ().get("RANK", "")
    except psutil.Error:
        return None
    return (int(rank), state) if rank.isdigit() and state != psutil.STATUS_ZOMBIE else None


def stop(launcher: subprocess.Popen, folder: str) -> None:
    """End every process of the run that is left; return when they are gone."""
    kill(folder, but=launcher.pid)
    if launcher.poll() is None:
        launcher.terminate()  # it buries the ranks, and goes
        wait_while(lambda: launcher.poll() is None)
    wait_while(lambda: kill(folder))  # what was born meanwhile, and a launcher that would not go
    launcher.wait()


def kill(folder: str, but: int | None = None) -> int:
    """Kill the processes of the run except ``but``; return how many there were."""
    found = [p for p in _of_run(folder) if p.pid != but and _runs(p)]
    for process in found:
        _signal(process, signal.SIGKILL)
    return len(found)


def _of_run(folder: str) -> list[psutil.Process]:
    """All processes of the run whose logs are in ``folder``, whoever their parent is now."""
    everyone = psutil.process_iter(["environ"])
    return [p for p in everyone if (p.info["environ"] or {}).get(MARK) == folder]


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
