"""Two torchrun agents on one machine, as on two: one loses a rank, itself, its machine, or time.

    python two_agents.py                    all cases at once, as the notebook runs them
    python two_agents.py --each agent       one after the other, so that the times are their own

Cases: "rank" (a rank is killed), "agent" (a torchrun is killed, its rank is not), "node" (both
are), "slow" (a rank stops until another times out). Each prints a line of JSON: what happened,
and how many seconds after it was hit.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import Process
from pathlib import Path

FATAL, EVERY, PATIENCE = 12, 5, 4  # hit after this step; steps between checkpoints; time-out, s
# How torchrun is started, what else the rendezvous is told, and how many steps are to be done.
CASES = {
    "rank": (["--nnodes=2", "--max-restarts=1"], "", 30),
    "agent": (["--nnodes=2", "--max-restarts=1"], ",keep_alive_interval=1", 150),
    "node": (
        ["--nnodes=1:2", "--max-restarts=1"],
        ",last_call_timeout=3,keep_alive_interval=1",
        30,
    ),
    "slow": (["--nnodes=2", "--max-restarts=1"], "", 30),
}
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID")


# --- a rank: counts steps that take all ranks, and saves its count -------------------------------


def train(folder: Path, steps: int) -> None:
    import torch
    import torch.distributed as dist

    def note(what: str, **more: object) -> None:
        line = {"at": time.time(), "what": what, "pid": os.getpid(), "agent": os.getppid(), **more}
        with open(folder / "notes", "a") as file:
            file.write(json.dumps(line) + "\n")  # one write: the lines of two ranks stay apart

    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    rank, ranks, checkpoint = dist.get_rank(), dist.get_world_size(), folder / "checkpoint"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    note("begins", ranks=ranks, step=step, variables={name: os.environ[name] for name in VARIABLES})
    while step < steps:
        time.sleep(0.05)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            note("raises", error=str(error))
            raise
        step += 1
        if rank == 0 and step % EVERY == 0:
            (folder / "new").write_text(f"{step}")
            os.replace(folder / "new", checkpoint)
        if step == FATAL:
            note("fatal")
            end = time.monotonic() + 60  # on a busy machine, too, it is hit before the next save
            while not (folder / "hit").exists() and time.monotonic() < end:
                time.sleep(0.01)
    note("ends", ranks=ranks, step=step)
    dist.destroy_process_group()


# --- a case: two agents, and what is done to one of them -----------------------------------------


def agent(arguments: list[str], log: Path) -> None:
    """Be torchrun, in a process that has it imported already."""
    from torch.distributed.run import main

    os.setsid()
    with open(log, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else restarts fail: see chapter 5.2
    main(arguments)


def start(case: str, folder: Path) -> list[Process]:
    """Two agents that meet at a free port of this machine, each with one rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options, patience, steps = CASES[case]
    agents, fork = [], multiprocessing.get_context("fork")
    for is_host in (1, 0):  # the first opens the store, or whoever comes first would
        where = [f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf=is_host={is_host}{patience}"]
        command = [*options, "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-id={case}"]
        command += [*where, __file__, "--rank", str(folder), str(steps)]
        agents.append(fork.Process(target=agent, args=(command, folder / f"agent{is_host}")))
        agents[-1].start()
    return agents


def run(case: str, folder: Path, agents: list[Process]) -> dict:
    """What becomes of the agents after the second, or its rank, was hit."""

    def told(what: str) -> list[dict]:
        return [note for note in notes(folder) if note["what"] == what]

    def wait(there: Callable[[], bool]) -> None:
        until = time.monotonic() + 120
        while not there():
            if time.monotonic() > until:
                raise SystemExit(f"{case}: it never happened; {notes(folder)}")
            time.sleep(0.02)

    try:
        wait(lambda: len(told("fatal")) == 2)
        began = told("begins")
        victim = next(note for note in began if note["agent"] == agents[1].pid)
        hit = time.time()
        for whom in {"rank": ["pid"], "agent": ["agent"], "node": ["agent", "pid"]}.get(case, []):
            os.kill(victim[whom], signal.SIGKILL)
        if case == "slow":
            os.kill(victim["pid"], signal.SIGSTOP)
        (folder / "hit").touch()
        if case == "slow":
            wait(lambda: told("raises"))
            os.kill(victim["pid"], signal.SIGCONT)
        wait(lambda: len(told("ends")) == (1 if case == "node" else 2))
        left = [name for name, each in zip("AB", agents, strict=True) if each.is_alive()]
        later = [{**n, "after": round(n["at"] - hit, 1)} for n in notes(folder) if n["at"] > hit]
        steps = CASES[case][2]
        return {"case": case, "began": began, "steps": steps, "later": later, "left": left}
    finally:
        for pid in {note["pid"] for note in notes(folder)} | {each.pid for each in agents}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def notes(folder: Path) -> list[dict]:
    path = folder / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(cases: list[str], each: bool) -> None:
    import torch.distributed.run  # noqa: F401  once, for all agents

    with tempfile.TemporaryDirectory() as name:
        for group in [[case] for case in cases] if each else [cases]:
            folders = [Path(tempfile.mkdtemp(dir=name)) for _ in group]
            started = list(map(start, group, folders))  # fork before there are threads
            with ThreadPoolExecutor(len(group)) as pool:
                for found in pool.map(run, group, folders, started):
                    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; else all")
    parser.add_argument("--each", action="store_true", help="one after the other")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)  # what an agent starts
    settings = parser.parse_args()
    if unknown := set(settings.cases) - CASES.keys():
        parser.error(f"no such case: {', '.join(unknown)}")
    if settings.rank:
        train(Path(settings.rank[0]), int(settings.rank[1]))
    else:
        main(settings.cases or list(CASES), settings.each)
