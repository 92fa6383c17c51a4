"""What becomes of two ranks that wait for each other, under each NCCL backend of this torch.

    python hangs.py                                  # every case, under every backend
    python hangs.py nccl2 "a rank stuck elsewhere"   # one

No torchrun here: it stops all ranks as soon as one has failed. A rank ends as its backend has it,
or is stopped when the case's seconds are over. Prints {backend: {case: [what became of a rank]}}.
"""

import argparse
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from deadlock import log_loss, train

PATIENCE = 5  # seconds that a collective may take
BACKENDS = {"old": "0", "nccl2": "1"}  # what TORCH_DIST_USE_NCCL2 says
SAYS = r"Watchdog caught coll|timed out after|Aborting|Waiting \d+ ms|^torch\.dist|^\w+Error:"
HOLDS = "collective_seq_id", "profiling_name", "input_sizes", "state"


def another_size(loss: torch.Tensor) -> None:
    dist.all_reduce(torch.ones((1_000_000, 1000)[dist.get_rank()], device=loss.device))


def left(loss: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        raise SystemExit  # as a script ends that had fewer batches
    dist.all_reduce(loss)


def stuck(loss: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        time.sleep(1000)  # a loader, a full disk
    dist.all_reduce(loss)


QUICK = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1500"}  # 15 s by default
NEW = {"TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "1500", "TORCH_FR_DUMP_TEMP_FILE": "new."}
CASES = {  # what the ranks do after a good step, variables, and seconds until they are stopped
    "as it comes": (log_loss, {}, 90),
    "another collective": (log_loss, QUICK, 45),
    "another size": (another_size, QUICK, 45),
    "a rank that has left": (left, QUICK, 45),
    "a rank stuck elsewhere": (stuck, QUICK, 45),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=0": (log_loss, QUICK, 30),
    "TORCH_NCCL_BLOCKING_WAIT=1": (log_loss, QUICK, 45),
    "TORCH_NCCL_DUMP_ON_TIMEOUT=0": (log_loss, QUICK, 45),
    "TORCH_NCCL_ENABLE_TIMING=1": (log_loss, NEW, 45),
}


def rank(case: str, number: int, port: int) -> None:
    """Be one of the two."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(CASES[case][2] + 30)  # ends it, should nobody else
    gpu = torch.cuda.device_count() > 1
    device = torch.device("cuda", number) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
        torch.ones(1, device=device)
    store = dist.TCPStore("127.0.0.1", port, 2, False, timedelta(seconds=60))
    store.set(f"here {number}", "")
    store.wait(["here 0", "here 1"])  # joining must not take longer than PATIENCE
    patience = timedelta(seconds=PATIENCE)
    bound = {"device_id": device} if gpu else {}
    joining = {"store": store, "rank": number, "world_size": 2, "timeout": patience, **bound}
    dist.init_process_group("nccl" if gpu else "gloo", **joining)

    def log(loss: torch.Tensor) -> None:
        loss.item()  # the step is done
        print(time.time(), flush=True)
        CASES[case][0](loss)

    train(log, device)
    dist.destroy_process_group()


def found(folder: Path, number: int, code: int | None, end: float) -> dict:
    """What a rank has left: how it ended and when, what it said, where it stood, its entries."""
    errors = re.sub(r"\[rank\d\]:\s?", "", (folder / f"err{number}").read_text(errors="replace"))
    began = (folder / f"out{number}").read_text().split()
    said = [re.sub(r"^\[\w+ .*?\] (\[.*?\] ?)*", "", s) for s in errors.splitlines()]
    said = [s[:220] for s in said if re.search(SAYS, s)]
    threads = re.split(r"(?m)^(?:Current thread|Thread) .*$", errors)[1:]
    frames = next((t for t in threads if "hangs.py" in t), "")
    stood = re.findall(r'File ".*?([^/"]+)", line (\d+) in (\w+)', frames)
    entries = dumped = None
    for name in ("old", "new"):
        if (path := folder / f"{name}.{number}").exists() and path.stat().st_size:
            dumped, dump = name, pickle.loads(path.read_bytes())
            entries = [[e[key] for key in HOLDS] + [called(e)] for e in dump["entries"]]
    return {
        "exit": code,  # None: it was still there
        "after": float(f"{end - float(began[0]):.3g}") if began else None,
        "said": list(dict.fromkeys(said))[:6],
        "stood": [f"{name} ({file}:{line})" for file, line, name in stood[:3]],
        "file": dumped,
        "recorded": entries and entries[-3:],
    }


def called(entry: dict) -> str:
    """Where in these scripts a recorded collective was called."""
    own = [
        f for f in entry.get("frames", []) if f["filename"].endswith(("deadlock.py", "hangs.py"))
    ]
    return f"{own[0]['name']}:{own[0]['line']}" if own else ""


def ended(backend: str, case: str) -> list[dict]:
    """Start two ranks, wait until they have ended or their seconds are over, stop what is left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        env = os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHON_COLORS": "0", "NO_COLOR": "1"}
        env |= {"OMP_NUM_THREADS": "1", "TORCH_DIST_USE_NCCL2": BACKENDS[backend]}
        env |= {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "old.", "TORCH_CPP_LOG_LEVEL": "WARNING"}
        _, variables, seconds = CASES[case]
        env |= variables | dict([case.split("=")] if "=" in case else [])
        ranks, ends, start = [], {}, time.time()
        for number in range(2):
            with (
                open(folder / f"out{number}", "w") as out,
                open(folder / f"err{number}", "w") as err,
            ):
                words = [sys.executable, __file__, "--rank", str(number), str(store.port), case]
                more = {"stdout": out, "stderr": err, "start_new_session": True, "cwd": folder}
                ranks.append(subprocess.Popen(words, env=env, **more))
        while len(ends) < 2 and time.time() < start + seconds:
            for number, process in enumerate(ranks):
                if number not in ends and process.poll() is not None:
                    ends[number] = time.time()
            time.sleep(0.01)
        codes = [process.returncode for process in ranks]
        for sign in (signal.SIGABRT, signal.SIGKILL):  # first they write where they stand
            for process in ranks:
                if process.poll() is None:
                    os.killpg(process.pid, sign)
            until = time.time() + 3
            while time.time() < until and any(process.poll() is None for process in ranks):
                time.sleep(0.05)
        return [found(folder, i, codes[i], ends.get(i, time.time())) for i in range(2)]


def met(ranks: list[dict]) -> bool:
    """Whether both ranks came as far as the case."""
    return None not in [one["after"] for one in ranks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="a backend, a case")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        return rank(args.rank[2], int(args.rank[0]), int(args.rank[1]))
    new = hasattr(dist.distributed_c10d, "ProcessGroupNCCL2")
    runs = [(b, case) for case in CASES for b in ("old", *["nccl2"] * new)]
    runs = [run for run in runs if set(args.what) <= set(run)]
    begin = time.time()
    with ThreadPoolExecutor(8) as pool:
        outcomes = dict(zip(runs, pool.map(lambda run: ended(*run), runs), strict=True))
    for run in runs:
        if not met(outcomes[run]) and time.time() < begin + 100:  # the machine was too busy
            outcomes[run] = ended(*run)
    told = {b: {case: outcomes[b, case] for o, case in runs if o == b} for b, _ in runs}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
