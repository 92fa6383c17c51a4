"""The launcher of a run: torchrun, in a process of its own that outlives nobody."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from utils.ranks.logs import LAUNCHER
from utils.ranks.processes import kill, wait_while


def follow(parent: int, folder: str) -> None:
    """As soon as the notebook's process is gone, end the run, and remove its folder."""
    while os.getppid() == parent:
        time.sleep(0.5)
    launcher = os.getpid()
    if os.fork():
        return
    # The launcher first: it would go on starting ranks, and writing into the folder.
    os.kill(launcher, signal.SIGKILL)
    wait_while(lambda: kill(folder, but=os.getpid()))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def forgive_cut_reports() -> None:
    """Let torchrun take a rank that was ended while it wrote its exception for one without any.

    Left alone, it fails on the empty file, and with it goes the news of who failed first.
    """
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    read = ProcessFailure.__post_init__

    def read_if_whole(failure: ProcessFailure) -> None:
        try:
            read(failure)
        except json.JSONDecodeError:
            Path(failure.error_file).unlink()
            read(failure)

    ProcessFailure.__post_init__ = read_if_whole


def launch(parent: int, folder: str, command: list[str]) -> int:
    """Be torchrun, and leave the exit codes of failed ranks in ``folder``."""
    # First of all: the process that asked may be killed while this one imports torch.
    follower = threading.Thread(target=follow, args=[parent, folder], daemon=True)
    follower.start()
    import resource

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    forgive_cut_reports()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an aborted rank leaves no core file
    status = 0
    try:
        main(command)
    except Exception as error:
        # Its store, which it leaves after it has told who failed, may fail, too (seen under load).
        while error is not None and not isinstance(error, ChildFailedError):
            error = error.__context__
        if error is None:
            raise
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        (Path(folder) / LAUNCHER).write_text(json.dumps(codes))
        status = 1
    if os.getppid() != parent:
        follower.join()  # nobody else removes the folder
    return status


if __name__ == "__main__":
    status = launch(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # to tear down the modules of torch would take half a second more
