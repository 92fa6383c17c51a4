"""Wait for the launcher to end: show what rank 0 prints, and notice ranks that do not end."""

import contextlib
import subprocess
import time
from typing import TextIO

import psutil

from utils.ranks.logs import Logs, lines_of, result_of

SHOWN = 20_000  # characters of rank 0's output that a cell shows
LOOK = 0.5  # seconds between two looks at whether the ranks are at work
# Only Linux tells: macOS calls nearly every process running.
WAITS_FOR_ITS_TURN = {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP} if psutil.LINUX else set()


class Hang(Exception):
    """The ranks do not end; the message says how this was noticed."""


class Work:
    """Watches whether the ranks are at work, by looking once in a while.

    At work is who used the processor since the last look, and who waits for it or for the disk: on
    a busy machine a rank may wait long for its turn. The launcher counts too, as it may still be
    starting ranks.
    """

    def __init__(self, launcher: subprocess.Popen):
        self.launcher = psutil.Process(launcher.pid)
        self.used: dict[int, float] = {}  # seconds of processor time, by process
        self.looked, self.seconds = time.monotonic(), 0.0

    def idle(self) -> float:
        """Return for how many seconds nobody has been at work."""
        since = time.monotonic() - self.looked
        if since > LOOK:
            ranks = []
            with contextlib.suppress(psutil.NoSuchProcess):
                ranks = self.launcher.children()
            at_work = [self._at_work(process) for process in (self.launcher, *ranks)]
            # One look counts for its own time at most: what kept this process from looking, such
            # as a machine that stood still, kept the ranks from working.
            self.seconds = 0.0 if not ranks or any(at_work) else self.seconds + min(since, LOOK)
            self.looked = time.monotonic()
        return self.seconds

    def _at_work(self, process: psutil.Process) -> bool:
        try:
            used, state = sum(process.cpu_times()[:2]), process.status()  # user, system
        except psutil.NoSuchProcess:
            return False
        before = self.used.get(process.pid)
        self.used[process.pid] = used
        # Just started, or more than a thread that looks now and then. (No time used is not "not
        # started": a short life is rounded down to nothing.)
        return before is None or used - before > 0.02 or state in WAITS_FOR_ITS_TURN


def watch(
    launcher: subprocess.Popen,
    logs: Logs,
    timeout: float,
    idle: float | None,
    file: TextIO | None,
) -> None:
    """Wait for the launcher to end, printing rank 0's output to ``file`` as it comes."""
    deadline = time.monotonic() + timeout
    work = Work(launcher) if idle else None
    read = shown = 0
    ended = False
    while not ended:
        try:
            launcher.wait(timeout=0.05)
            ended = True
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise Hang(f"did not end within {timeout:g} s") from None
            if work and work.idle() > idle:
                raise Hang(f"did nothing for {idle:g} s") from None
        log = logs.path(0, "stdout.log")
        if file is None or not log.exists():
            continue
        with open(log, "rb") as output:
            output.seek(read)
            new = output.read()
        whole = new if ended else new[: new.rfind(b"\n") + 1]  # a result shows itself at its end
        read += len(whole)
        for line in lines_of(whole.decode(errors="replace")):
            if result_of(line) is not None:
                continue
            if shown <= SHOWN <= shown + len(line):
                said = "(rank 0 prints more than a page can hold: the rest is not shown)"
                print(said, flush=True, file=file)
            shown += len(line) + 1
            if shown <= SHOWN:
                print(line, flush=True, file=file)
