"""Real ranks from a notebook cell: start a script under torchrun, watch it, leave nothing behind::

    results = torchrun("train_ddp.py", "--epochs", 1, ranks=2)

A *rank* is one process of the group; it usually drives one GPU. The script is an ordinary training
script of ``book/scripts``: it also runs under ``torchrun`` in a terminal. The one thing asked of it
is that every rank prints its result, a JSON object, as a line of its own; the last one counts.

With fewer GPUs than ranks, the GPUs are hidden from the ranks, which then meet through gloo on the
CPU. The first line of the cell says which it was. Linux and macOS.
"""

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import psutil

from utils.device import gpu_count
from utils.fingerprint import SCRIPTS

ROOT = Path(__file__).resolve().parent.parent
SHOWN = 20_000  # characters of rank 0's output that a cell shows
MARK = "BOOK_RANKS_OF"  # in the environment of every process of a run: the folder of its logs
LAUNCHER = "launcher.json"  # where the launcher leaves the exit codes of failed ranks
LOOK = 0.5  # seconds between two looks at whether the ranks are at work
# Only Linux tells: macOS calls nearly every process running.
WAITS_FOR_ITS_TURN = {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP} if psutil.LINUX else set()
# A notebook's kernel asks for colors (FORCE_COLOR), and from 3.13 on Python's tracebacks have some.
# What a rank says is quoted, searched and compared: plain text, on every Python.
PLAIN = {"PYTHON_COLORS": "0", "NO_COLOR": "1"}


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


def torchrun(
    script: str | Path,
    *arguments: object,
    ranks: int,
    device: str | None = None,
    timeout: float = 100,
    idle: float | None = None,
    quiet: bool = False,
    env: Mapping[str, object] | None = None,
    file: TextIO | None = None,
) -> list[dict]:
    """Run ``ranks`` processes of ``script`` on this machine; return each one's result.

    Parameters
    ----------
    script : str or Path
        A file of ``book/scripts``, or a path.
    arguments
        Its command line.
    ranks : int
        Processes to start, at least 1.
    device : str, optional
        ``"cpu"`` runs on the CPU, whatever the machine has.
    timeout : float
        Seconds until the ranks are stopped, wherever they are.
    idle : float, optional
        Stop them already when for so many seconds none of them has used the processor, or waited
        for its turn. That finds a hang on the CPU; a rank that waits for a GPU may use the
        processor all the while.
    quiet : bool
        Do not show rank 0's output. Otherwise it streams into the cell, its result left out.
    env : mapping, optional
        Environment variables to set besides.
    file : text stream, optional
        Where to print; ``sys.stdout`` unless given. In a thread give an ``io.StringIO``, and print
        its value in the main thread: what two threads print at the same time gets mixed up.

    Returns
    -------
    list of dict
        The result of every rank, in order.

    Raises
    ------
    RankError
        If a rank fails, with the traceback of the first that did, or ends without a result.
    RankTimeout
        If they run longer than ``timeout``, or are idle, with the place where each rank stood.
    ValueError, FileNotFoundError
        If no rank is asked for, the device is unknown, or there is no such script.
    """
    path = _path(script)
    if type(ranks) is not int or ranks < 1:
        raise ValueError(
            f"ranks={ranks!r}: ask for at least one, or nothing runs and nothing fails"
        )
    if device not in (None, "cpu"):
        raise ValueError(f"device={device!r}: 'cpu', or leave it out to use the GPUs there are")
    on_gpus = device is None and gpu_count() >= ranks
    who = "1 rank" if ranks == 1 else f"{ranks} ranks"
    where = f"NCCL on {ranks} GPU{'s' * (ranks > 1)}" if on_gpus else "gloo on CPU"
    print(f"{who} of {path.name}: {where}", flush=True, file=file)

    with tempfile.TemporaryDirectory() as folder:
        logs = _Logs(Path(folder), ranks)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            **PLAIN,
            MARK: folder,
            "PYTHONFAULTHANDLER": "1",  # a rank that is aborted says where it stood
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",  # torchrun's default, without its warning
            **({} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            **{key: str(value) for key, value in (env or {}).items()},
        }
        # On one machine the ranks meet at its own address: its host name may resolve to nothing.
        options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
        logged = ["--redirects=3", f"--log-dir={folder}"]
        command = [*options, *logged, "--", str(path), *map(str, arguments)]
        with open(logs.folder / "launcher.log", "wb") as output:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "utils.distributed", str(os.getpid()), folder, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt reaches this process only, which then acts
            )
        try:
            _watch(launcher, logs, timeout, idle, None if quiet else file or sys.stdout)
        except _Hang as hang:
            left = {}
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                left = _abort(launcher)
            raise _timed_out(path, logs, str(hang), left) from None
        finally:
            _stop(launcher, folder)
        if launcher.returncode != 0:
            raise _failed(path, logs)
        return [_result(path, logs, rank) for rank in range(ranks)]


def _path(script: str | Path) -> Path:
    path = SCRIPTS / script if (SCRIPTS / script).is_file() else Path(script)
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in SCRIPTS.glob("*.py")))
        raise FileNotFoundError(f"no script {script}; book/scripts has {there}")
    return path.resolve()


# --- watching and stopping -----------------------------------------------------------------------


class _Logs:
    """What the ranks of one run write: torchrun gives each a folder with three files."""

    def __init__(self, folder: Path, ranks: int):
        self.folder, self.ranks = folder, ranks

    def path(self, rank: int, name: str) -> Path:
        found = list(self.folder.glob(f"*/attempt_0/{rank}/{name}"))
        return found[0] if found else self.folder / "none"

    def launcher(self) -> str:
        return (self.folder / "launcher.log").read_text(encoding="utf-8", errors="replace")

    def read(self, rank: int, name: str) -> str:
        path = self.path(rank, name)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


class _Hang(Exception):
    """The ranks do not end; the message says how this was noticed."""


class _Work:
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


def _watch(
    launcher: subprocess.Popen,
    logs: _Logs,
    timeout: float,
    idle: float | None,
    file: TextIO | None,
) -> None:
    """Wait for the launcher to end, printing rank 0's output to ``file`` as it comes."""
    deadline = time.monotonic() + timeout
    work = _Work(launcher) if idle else None
    read = shown = 0
    ended = False
    while not ended:
        try:
            launcher.wait(timeout=0.05)
            ended = True
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise _Hang(f"did not end within {timeout:g} s") from None
            if work and work.idle() > idle:
                raise _Hang(f"did nothing for {idle:g} s") from None
        log = logs.path(0, "stdout.log")
        if file is None or not log.exists():
            continue
        with open(log, "rb") as output:
            output.seek(read)
            new = output.read()
        whole = new if ended else new[: new.rfind(b"\n") + 1]  # a result shows itself at its end
        read += len(whole)
        for line in _lines(whole.decode(errors="replace")):
            if _is_result(line):
                continue
            if shown <= SHOWN < shown + len(line):
                print("(rank 0 prints more than a page can hold: the rest is not shown)", file=file)
            shown += len(line) + 1
            if shown <= SHOWN:
                print(line, flush=True, file=file)


def _abort(launcher: subprocess.Popen) -> dict[int, str]:
    """Make the ranks write down where they stand, and end; return how each was found."""
    parent = psutil.Process(launcher.pid)
    parent.suspend()  # or it would stop the ranks that are still writing
    ranks = parent.children()
    left = dict(filter(None, map(_state, ranks)))
    for process in ranks:
        _signal(process, signal.SIGABRT)
        _signal(process, signal.SIGCONT)  # a stopped process would never get to it
    until = time.monotonic() + 5
    while any(map(_runs, ranks)) and time.monotonic() < until:
        time.sleep(0.02)
    parent.resume()
    return left


def _state(process: psutil.Process) -> tuple[int, str] | None:
    """A rank and its state, such as "running" or "stopped"; None if it is none, or has ended."""
    try:
        state = process.status()
        rank = process.environ().get("RANK", "")
    except psutil.Error:
        return None
    return (int(rank), state) if rank.isdigit() and state != psutil.STATUS_ZOMBIE else None


def _stop(launcher: subprocess.Popen, folder: str) -> None:
    """End every process of the run that is left; return when they are gone."""
    _kill(folder, but=launcher.pid)
    if launcher.poll() is None:
        launcher.terminate()  # it buries the ranks, and goes
        try:
            launcher.wait(timeout=5)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
    until = time.monotonic() + 5
    while _kill(folder) and time.monotonic() < until:  # what was born meanwhile
        time.sleep(0.02)


def _kill(folder: str, but: int | None = None) -> int:
    """Kill the processes of the run except ``but``; return how many there were."""
    found = [p for p in _processes(folder) if p.pid != but and _runs(p)]
    for process in found:
        _signal(process, signal.SIGKILL)
    return len(found)


def _processes(folder: str) -> list[psutil.Process]:
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


# --- what became of them -------------------------------------------------------------------------


def _is_result(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def _lines(text: str) -> list[str]:
    """Split ``text`` at line feeds only: a JSON string may hold what splitlines takes for one."""
    return text.removesuffix("\n").split("\n") if text else []


def _result(path: Path, logs: _Logs, rank: int) -> dict:
    for line in reversed(_lines(logs.read(rank, "stdout.log"))):
        if _is_result(line):
            return json.loads(line)
    what = "printed no result: a line that is a JSON object"
    raise RankError(f"rank {rank} of {path.name} {what}", rank, what)


def _timed_out(path: Path, logs: _Logs, hang: str, left: dict[int, str]) -> RankTimeout:
    stacks = {rank: _stack(logs.read(rank, "stderr.log"), path) for rank in range(logs.ranks)}
    lines = [f"{path.name} {hang} and was stopped. Its ranks stood at"]
    for rank, stack in stacks.items():
        where = " < ".join(stack)
        if left.get(rank) == psutil.STATUS_STOPPED:
            where = f"{where} (stopped by a signal, such as Ctrl+Z)".strip()
        elif not where and rank in left:
            where = "(it had not come to the script yet)"
        elif not where and logs.path(rank, "stdout.log").exists():
            where = "(it had already ended)"
        lines.append(f"rank {rank}: {where or '(it had not started)'}")
    launcher = _short(logs.launcher()).strip()
    if not any(stacks.values()) and launcher:  # the ranks never met: what kept them?
        lines.append("torchrun said\n" + "\n".join(launcher.splitlines()[-10:]))
    return RankTimeout("\n  ".join(lines), stacks)


def _stack(errors: str, script: Path) -> list[str]:
    """The frames of the thread that runs ``script``, from what faulthandler wrote."""
    for thread in re.split(r"(?m)^(?:Current thread|Thread) .*$", errors)[1:]:
        frames = re.findall(r'(?m)^  File "(.*)", line (\d+) in (.*)$', thread)
        if any(Path(file) == script and name == "<module>" for file, _, name in frames):
            shown = [(name, _short(file), line) for file, line, name in frames]
            return [f"{name} ({file}:{line})" for name, file, line in shown]
    return []


def _failed(path: Path, logs: _Logs) -> RankError:
    """The error to raise for the first rank that failed."""
    report = logs.folder / LAUNCHER
    codes = json.loads(report.read_text()) if report.exists() else {}
    # SIGTERM is how torchrun stops the others, unless they had raised something themselves.
    failed = [
        int(rank)
        for rank, code in codes.items()
        if code != -signal.SIGTERM or logs.path(int(rank), "error.json").exists()
    ] or [int(rank) for rank in codes]
    if not failed:
        said = _short(logs.launcher()).strip()
        last = said.splitlines()[-1] if said else "said nothing"
        return RankError(f"torchrun could not run {path.name}:\n{said}", None, last)

    def when(rank: int) -> float:
        """When it failed: a killed rank writes nothing, and the others only fail after it."""
        if codes[str(rank)] == -signal.SIGKILL:
            # But torchrun itself kills what does not end 30 s after another rank has failed.
            return report.stat().st_mtime - 20
        wrote = logs.path(rank, "error.json")
        return (wrote if wrote.exists() else logs.path(rank, "stderr.log")).stat().st_mtime

    first = min(failed, key=when)
    exception, traceback = _exception(logs, first, codes[str(first)])
    said = "" if traceback.rstrip().endswith(exception) else f" {exception}"
    return RankError(
        f"rank {first} of {path.name} failed:{said}\n{traceback}".rstrip(),
        first,
        exception,
        traceback,
    )


def _exception(logs: _Logs, rank: int, code: int) -> tuple[str, str]:
    """The exception of a failed rank and its traceback, without the paths of this machine."""
    errors = _short(re.sub(r"(?m)^\[rank\d+\]: ", "", logs.read(rank, "stderr.log")))
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


def _short(text: str) -> str:
    """``text`` with file names as a reader of any machine would write them."""
    installed = r'(?m)(?:(?<=")|^)/[^"\n]*/(?:site-packages|dist-packages|lib/python3\.\d+)/'
    text = re.sub(installed, "", text)  # first: an environment may lie inside the project
    return text.replace(f"{SCRIPTS}{os.sep}", "").replace(f"{ROOT}{os.sep}", "")


# --- scripts in the page -------------------------------------------------------------------------


class Source:
    """A script of ``book/scripts`` as it is, shown as code in the page.

    Parameters
    ----------
    script : str
        Name of the file.
    names : str
        Show only these functions and classes, in this order.

    Attributes
    ----------
    name, text : str
        The file, from the project's root, and what is shown of it.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such script, or nothing of that name in it.
    """

    def __init__(self, script: str, *names: str):
        self.name = f"book/scripts/{script}"
        text = _path(script).read_text(encoding="utf-8")
        lines, parts = text.splitlines(), {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                parts[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
        unknown = [name for name in names if name not in parts]
        if unknown:
            raise ValueError(f"{script} defines {', '.join(parts)}, but not {', '.join(unknown)}")
        self.text = "\n\n\n".join(parts[name] for name in names) if names else text.strip()

    def _repr_markdown_(self) -> str:
        return f"`{self.name}`\n\n```python\n{self.text}\n```"

    def __repr__(self) -> str:
        return f"# {self.name}\n{self.text}"


# --- the launcher: torchrun, in a process of its own ---------------------------------------------


def _follow(parent: int, folder: str) -> None:
    """As soon as the notebook's process is gone, kill the run, its folder and this launcher."""
    while os.getppid() == parent:
        time.sleep(0.5)
    until = time.monotonic() + 5
    while _kill(folder, but=os.getpid()) and time.monotonic() < until:
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _launch(parent: int, folder: str, command: list[str]) -> int:
    """Be torchrun, and leave the exit codes of failed ranks in ``folder``."""
    # First of all: the process that asked may be killed while this one imports torch.
    threading.Thread(target=_follow, args=[parent, folder], daemon=True).start()
    import resource

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an aborted rank leaves no core file
    try:
        main(command)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        (Path(folder) / LAUNCHER).write_text(json.dumps(codes))
        return 1
    return 0


if __name__ == "__main__":
    status = _launch(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # to tear down the modules of torch would take half a second more
