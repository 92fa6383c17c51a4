"""Real ranks from a notebook cell: start a script under torchrun, watch it, leave nothing behind::

    results = torchrun("train_ddp.py", "--epochs", 1, ranks=2)

A *rank* is one process of the group; it usually drives one GPU. The script is an ordinary training
script of ``book/scripts``: it also runs under ``torchrun`` in a terminal. The one thing asked of it
is that every rank prints its result, a JSON object, as a line of its own; the last one counts.

With fewer GPUs than ranks, the GPUs are hidden from the ranks, which then meet through gloo on the
CPU. The first line of the cell says which it was. Linux and macOS.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from utils.device import gpu_count
from utils.ranks.failures import RankError, failed, timed_out
from utils.ranks.logs import Logs
from utils.ranks.processes import MARK, abort, stop
from utils.ranks.scripts import find
from utils.ranks.watching import Hang, watch
from utils.record import ROOT

# A notebook's kernel asks for colors (FORCE_COLOR), and from 3.13 on Python's tracebacks have some.
# What a rank says is quoted, searched and compared: plain text, on every Python.
PLAIN = {"PYTHON_COLORS": "0", "NO_COLOR": "1"}


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
        logs = Logs(Path(folder), ranks)
        launcher = _start([path, *arguments], logs, on_gpus, env or {})
        try:
            watch(launcher, logs, timeout, idle, None if quiet else file or sys.stdout)
        except Hang as hang:
            raise timed_out(path, logs, str(hang), abort(launcher)) from None
        finally:
            stop(launcher, folder)
        if launcher.returncode != 0:
            raise failed(path, logs)
        return [_result(path, logs, rank) for rank in range(ranks)]


def _start(
    command: Sequence[object], logs: Logs, on_gpus: bool, env: Mapping[str, object]
) -> subprocess.Popen:
    """Start the launcher, which starts ranks of ``command``: a script and its arguments."""
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
            [*own, *options, *map(str, command)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt reaches this process only, which then acts
        )


def _result(path: Path, logs: Logs, rank: int) -> dict:
    result = logs.result(rank)
    if result is None:
        what = "printed no result: a line that is a JSON object"
        raise RankError(f"rank {rank} of {path.name} {what}", rank, what)
    return result
