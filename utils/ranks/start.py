"""Start ranks: torchrun as a function, and the scripts that ranks run, shown in the page."""

import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from utils.device import gpu_count
from utils.ranks.logs import Logs, failed, lines_of, result_of, timed_out
from utils.ranks.processes import MARK, abort, stop
from utils.record import ROOT, SCRIPTS

# A notebook's kernel asks for colors (FORCE_COLOR), and from 3.13 on Python's tracebacks have some.
# What a rank says is quoted, searched and compared: plain text, on every Python.
PLAIN = {"PYTHON_COLORS": "0", "NO_COLOR": "1"}
SHOWN = 20_000  # characters of rank 0's output that a cell shows
CUT = "(rank 0 prints more than a page can hold: the rest is not shown)"


def torchrun(
    script: str | Path,
    *arguments: object,
    ranks: int,
    device: str | None = None,
    timeout: float = 100,
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
    quiet : bool
        Do not show rank 0's output. Otherwise it streams into the cell, its result left out.
    env : mapping, optional
        Environment variables to set besides.
    file : text stream, optional
        Where it is said who runs, by default in the cell.

    Returns
    -------
    list of dict
        The result of every rank, in order.

    Raises
    ------
    RankError
        If a rank fails, with the traceback of the first that did, or ends without a result.
    RankTimeout
        If they run longer than ``timeout``, with the place where each rank stood.
    ValueError, FileNotFoundError
        If no rank is asked for, the device is unknown, or there is no such script.
    """
    path = find(script)
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
        logs = Logs(path, Path(folder), ranks)
        launcher = _start(arguments, logs, on_gpus, env or {})
        try:
            if not _watch(launcher, logs, timeout, quiet):
                raise timed_out(logs, timeout, abort(launcher))
        finally:
            stop(launcher, folder)
        if launcher.returncode != 0:
            raise failed(logs)
        return [logs.result(rank) for rank in range(ranks)]


def _start(
    arguments: Sequence[object], logs: Logs, on_gpus: bool, env: Mapping[str, object]
) -> subprocess.Popen:
    """Start the launcher, which starts the ranks."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        **PLAIN,
        MARK: str(logs.folder),
        "PYTHONFAULTHANDLER": "1",  # a rank that is aborted says where it stood
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # torchrun's default, without its warning
        **({} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""}),
        **{key: str(value) for key, value in env.items()},
    }
    # On one machine the ranks meet at its own address: its host name may resolve to nothing.
    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={logs.ranks}"]
    options += ["--redirects=3", f"--log-dir={logs.folder}", "--"]
    own = [sys.executable, "-m", "utils.ranks.launcher", str(os.getpid()), str(logs.folder)]
    with open(logs.folder / "launcher.log", "wb") as output:
        return subprocess.Popen(
            [*own, *options, str(logs.script), *map(str, arguments)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt reaches this process only, which then acts
        )


def _watch(launcher: subprocess.Popen, logs: Logs, timeout: float, quiet: bool) -> bool:
    """Show rank 0's output as it comes; return whether the launcher has ended in time."""
    deadline = time.monotonic() + timeout
    read = shown = 0
    ended = False
    while not ended:
        try:
            launcher.wait(timeout=0.05)
            ended = True
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                return False
        log = logs.path(0, "stdout.log")
        if quiet or not log.exists():
            continue
        with open(log, "rb") as output:
            output.seek(read)
            new = output.read()
        whole = new if ended else new[: new.rfind(b"\n") + 1]  # a result shows itself at its end
        read += len(whole)
        for line in lines_of(whole.decode(errors="replace")):
            if result_of(line) is not None:
                continue
            before, shown = shown, shown + len(line) + 1
            if before <= SHOWN:
                print(line if shown <= SHOWN else CUT, flush=True)
    return True


def find(script: str | Path) -> Path:
    """The file of a script: one of ``book/scripts``, else a path; FileNotFoundError if neither."""
    path = SCRIPTS / script if (SCRIPTS / script).is_file() else Path(script)
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in SCRIPTS.glob("*.py")))
        raise FileNotFoundError(f"no script {script}; book/scripts has {there}")
    return path.resolve()


class Source:
    """A script as it is, shown as code in the page.

    Parameters
    ----------
    script : str
        Name of a file of ``book/scripts``, or a path from there.
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
        self.name = os.path.normpath(f"book/scripts/{script}")
        text = find(script).read_text(encoding="utf-8")
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
