"""What the ranks of one run write: results, and what became of ranks that failed or hung."""

import json
import os
import re
import signal
from pathlib import Path

import psutil

from utils.record import ROOT, SCRIPTS

LAUNCHER = "launcher.json"  # where the launcher leaves the exit codes of failed ranks


class RankError(RuntimeError):
    """A rank failed.

    Attributes
    ----------
    rank : int or None
        The first rank that failed; None if the launcher did.
    exception : str
        Its exception, such as ``"ValueError: …"``, or ``"killed by SIGKILL"``.
    traceback : str
        Its traceback, or the end of its error output.
    """

    def __init__(self, message: str, rank: int | None, exception: str, traceback: str = ""):
        super().__init__(message)
        self.rank, self.exception, self.traceback = rank, exception, traceback


class RankTimeout(RankError):
    """The ranks did not end in time, and were stopped.

    Attributes
    ----------
    stacks : dict of int to list of str
        Where each rank stood: ``"function (file:line)"``, innermost first; empty for a rank that
        had already ended, or not yet come to the script.
    """

    def __init__(self, message: str, stacks: dict[int, list[str]]):
        super().__init__(message, None, "time-out")
        self.stacks = stacks


class Logs:
    """What the ranks of one run write: torchrun gives each a folder with three files."""

    def __init__(self, script: Path, folder: Path, ranks: int):
        self.script, self.folder, self.ranks = script, folder, ranks

    def path(self, rank: int, name: str) -> Path:
        """A file of one rank; one that does not exist, if the rank has not been started."""
        found = list(self.folder.glob(f"*/attempt_0/{rank}/{name}"))
        return found[0] if found else self.folder / "none"

    def launcher(self) -> str:
        """What torchrun itself has said."""
        return (self.folder / "launcher.log").read_text(encoding="utf-8", errors="replace")

    def read(self, rank: int, name: str) -> str:
        """The text of a file of one rank, empty if there is none."""
        path = self.path(rank, name)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def result(self, rank: int) -> dict:
        """The last result that a rank has printed."""
        for line in reversed(lines_of(self.read(rank, "stdout.log"))):
            if (found := result_of(line)) is not None:
                return found
        what = "printed no result: a line that is a JSON object"
        raise RankError(f"rank {rank} of {self.script.name} {what}", rank, what)


def result_of(line: str) -> dict | None:
    """The JSON object that a line is, None if it is something else."""
    try:
        return json.loads(line) if line.startswith("{") else None
    except json.JSONDecodeError:
        return None


def lines_of(text: str) -> list[str]:
    """Split ``text`` at line feeds only: a JSON string may hold what splitlines takes for one."""
    return text.removesuffix("\n").split("\n") if text else []


# --- errors to raise, which name the culprit and the place ---------------------------------------


def timed_out(logs: Logs, timeout: float, left: dict[int, str]) -> RankTimeout:
    """The error to raise for ranks that hung; ``left`` are those still there, with their states."""
    errors = {rank: logs.read(rank, "stderr.log") for rank in range(logs.ranks)}
    stacks = {rank: _stack(text, logs.script) for rank, text in errors.items()}
    hang = f"{logs.script.name} did not end within {timeout:g} s and was stopped."
    lines = [f"{hang} Its ranks stood at"]
    for rank, stack in stacks.items():
        where = " < ".join(stack)
        if left.get(rank) == psutil.STATUS_STOPPED:
            where = f"{where} (stopped by a signal, such as Ctrl+Z)".strip()
        elif not where and rank in left:
            where = "(it had not come to the script yet)"
        elif not where and logs.path(rank, "stdout.log").exists():
            where = "(it had already ended)"
        lines.append(f"rank {rank}: {where or '(it had not started)'}")
    launcher = short(logs.launcher()).strip()
    if not any(stacks.values()) and launcher:  # the ranks never met: what kept them?
        lines.append("torchrun said\n" + "\n".join(launcher.splitlines()[-10:]))
    return RankTimeout("\n  ".join(lines), stacks)


def _stack(errors: str, script: Path) -> list[str]:
    """The frames of the thread that runs ``script``, from what faulthandler wrote."""
    for thread in re.split(r"(?m)^(?:Current thread|Thread) .*$", errors)[1:]:
        frames = re.findall(r'(?m)^  File "(.*)", line (\d+) in (.*)$', thread)
        if any(Path(file) == script and name == "<module>" for file, _, name in frames):
            return [f"{name} ({short(file)}:{line})" for file, line, name in frames]
    return []


def failed(logs: Logs) -> RankError:
    """The error to raise for the first rank that failed."""
    report = logs.folder / LAUNCHER
    left = json.loads(report.read_text()) if report.exists() else {}
    codes = {int(rank): code for rank, code in left.items()}
    if not codes:
        said = short(logs.launcher()).strip()
        last = said.splitlines()[-1] if said else "said nothing"
        return RankError(f"torchrun could not run {logs.script.name}:\n{said}", None, last)

    def order(rank: int) -> tuple[bool, float]:
        """Whether torchrun stopped it because of another, and when it failed."""
        wrote = logs.path(rank, "error.json")
        if codes[rank] == -signal.SIGKILL:
            # It writes nothing, and the others only fail after it. But torchrun itself kills what
            # does not end 30 s after another rank has failed.
            return False, report.stat().st_mtime - 20
        # SIGTERM is how torchrun stops the others, unless they had raised something themselves.
        stopped = codes[rank] == -signal.SIGTERM and not wrote.exists()
        last = wrote if wrote.exists() else logs.path(rank, "stderr.log")
        return stopped, last.stat().st_mtime

    first = min(codes, key=order)
    exception, traceback = _exception(logs, first, codes[first])
    said = "" if traceback.rstrip().endswith(exception) else f" {exception}"
    message = f"rank {first} of {logs.script.name} failed:{said}\n{traceback}".rstrip()
    return RankError(message, first, exception, traceback)


def _exception(logs: Logs, rank: int, code: int) -> tuple[str, str]:
    """The exception of a failed rank and its traceback, without the paths of this machine."""
    errors = short(re.sub(r"(?m)^\[rank\d+\]: ", "", logs.read(rank, "stderr.log")))
    if code < 0 and not logs.path(rank, "error.json").exists():
        end = "\n".join(errors.splitlines()[-30:])
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by {known.get(-code, f'signal {-code}')}", end
    # Frames are indented, the exception's first line is not. Of chained tracebacks the last counts.
    blocks = list(re.finditer(r"(?m)^Traceback \(most.*\n(?:[ \t].*\n)*(.*)$", errors))
    if not blocks:
        last = errors.strip().splitlines()[-1:]
        return (last[0] if last else f"exited with status {code}"), errors.strip()
    # torchrun's @record is the outermost frame of every script that uses it.
    own = r'  File "torch/distributed/elastic/multiprocessing/errors/.*\n(?:    .*\n)*'
    traceback = re.sub(own, "", errors[blocks[0].start() : blocks[-1].end()])
    return blocks[-1][1], traceback


def short(text: str) -> str:
    """``text`` with file names as a reader of any machine would write them."""
    installed = r'(?m)(?:(?<=")|^)/[^"\n]*/(?:site-packages|dist-packages|lib/python3\.\d+)/'
    text = re.sub(installed, "", text)  # first: an environment may lie inside the project
    return text.replace(f"{SCRIPTS}{os.sep}", "").replace(f"{ROOT}{os.sep}", "")
