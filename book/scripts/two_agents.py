"""Two torchrun agents on one machine, as on two: one loses a rank, itself, its machine, or time.

    python two_agents.py                    all cases at once, as the notebook runs them
    python two_agents.py --each agent       one after the other, so that the times are their own

Cases: "rank" (a rank is killed), "agent" (a torchrun is killed, its rank is not), "node" (both
are), "slow" (a rank stops for longer than the time-out). Each prints a line of JSON: what happened,
and how many seconds after it was hit.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import Process
from pathlib import Path

FORK = multiprocessing.get_context("fork")
FATAL, EVERY, PATIENCE = 12, 5, 4  # hit after this step; steps between checkpoints; time-out, s
# How torchrun is started, what else the rendezvous is told, and how many steps are to be done.
CASES = {
    "rank": (["--nnodes=2", "--max-restarts=1"], "", 30),
    "agent": (["--nnodes=2"], "", 60),
    "node": (
        ["--nnodes=1:2", "--max-restarts=1"],
        ",last_call_timeout=4,keep_alive_interval=1",
        30,
    ),
    "slow": (["--nnodes=2"], "", 30),
}


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
    variables = {name: os.environ[name] for name in os.environ if name in SHOWN}
    note("begins", rank=rank, ranks=ranks, step=step, variables=variables)
    while step < steps:
        time.sleep(0.05)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            note("raises", rank=rank, step=step, error=str(error))
            raise
        step += 1
        if rank == 0 and step % EVERY == 0:
            (folder / "new").write_text(f"{step}")
            os.replace(folder / "new", checkpoint)
        if step == FATAL:
            note("fatal", rank=rank)
    note("ends", rank=rank, ranks=ranks, step=step)
    dist.destroy_process_group()


SHOWN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")
SHOWN += ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID")


# --- a case: two agents, and what is done to one of them -----------------------------------------


def agent(arguments: list[str], log: Path) -> None:
    """Be torchrun, in a process that has it imported already."""
    from torch.distributed.run import main

    os.setsid()
    with open(log, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    clean = {name: value for name, value in os.environ.items() if name not in SHOWN}
    env = {**clean, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see chapter 5.2: without it, restarts fail
    os.environ.clear()
    os.environ.update(env)
    main(arguments)


def start(case: str, folder: Path) -> list[Process]:
    """Two agents that meet at a free port of this machine, each with one rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options, patience, steps = CASES[case]
    agents = []
    for is_host in (1, 0):  # the first opens the store, or whoever comes first would
        where = [f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf=is_host={is_host}{patience}"]
        command = [*options, "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-id={case}"]
        command += [*where, __file__, "--rank", str(folder), str(steps)]
        agents.append(FORK.Process(target=agent, args=(command, folder / f"agent{is_host}")))
        agents[-1].start()
    return agents


def run(case: str, folder: Path, agents: list[Process]) -> dict:
    try:
        return {"case": case, **follow(case, folder, agents)}
    finally:
        for pid in {note["pid"] for note in notes(folder)} | {a.pid for a in agents}:
            kill(pid, signal.SIGKILL)


def follow(case: str, folder: Path, agents: list[Process]) -> dict:
    wait(
        lambda: sum(n["what"] == "fatal" for n in notes(folder)) == 2, f"{case}: nobody got so far"
    )
    began = [note for note in notes(folder) if note["what"] == "begins"]
    victim = next(note for note in began if note["agent"] == agents[1].pid)
    hit = time.time()
    for kind, number in (("agent", signal.SIGKILL), ("pid", signal.SIGKILL)):
        if case in ("node", {"agent": "agent", "pid": "rank"}[kind]):
            kill(victim[kind], number)
    if case == "slow":
        kill(victim["pid"], signal.SIGSTOP)
        wait(
            lambda: any(note["what"] == "raises" for note in notes(folder)),
            f"{case}: nobody noticed",
        )
        kill(victim["pid"], signal.SIGCONT)
    ended = {"agent": 2, "rank": 2, "node": 1, "slow": 0}[case]
    if ended:
        wait(
            lambda: sum(n["what"] == "ends" for n in notes(folder)) == ended,
            f"{case}: it never ended, {notes(folder)}",
        )
    else:
        agents[0].join()
    time.sleep(0.5 if case == "agent" else 0)
    left = [name for name, each in zip("AB", agents, strict=True) if each.is_alive()]
    later = [{**n, "after": round(n["at"] - hit, 1)} for n in notes(folder) if n["at"] > hit]
    return {"began": began, "steps": CASES[case][2], "later": later, "left": left}


def notes(folder: Path) -> list[dict]:
    path = folder / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait(there: Callable[[], bool], otherwise: str, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not there():
        if time.monotonic() > until:
            raise SystemExit(otherwise)
        time.sleep(0.02)


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(Path(sys.argv[2]), int(sys.argv[3]))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case")
    parser.add_argument("--each", action="store_true", help="one after the other")
    settings = parser.parse_args()
    import torch.distributed.run  # noqa: F401  once, for all agents

    with tempfile.TemporaryDirectory() as name:
        groups = [[case] for case in settings.cases] if settings.each else [settings.cases]
        for group in groups:  # fork before there are threads
            folders = [Path(name, case) for case in group]
            for folder in folders:
                folder.mkdir()
            started = [start(case, folder) for case, folder in zip(group, folders, strict=True)]
            with ThreadPoolExecutor(len(group)) as pool:
                for found in pool.map(run, group, folders, started):
                    print(json.dumps(found), flush=True)
