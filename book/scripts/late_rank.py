"""Which calls keep the host until the last rank has come?

    torchrun --standalone --nproc-per-node=2 late_rank.py

All ranks meet; then the last one sleeps before it makes the same call. Rank 0 prints how long each
call kept it: {"call": seconds of each of the rounds}. The calls take turns.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from group import start
from torch.distributed.elastic.multiprocessing.errors import record

CALLS = {  # what every rank does before, and what is timed
    "all_reduce(x)": (lambda x: None, lambda x: dist.all_reduce(x)),
    "all_reduce(x, async_op=True).wait()": (
        lambda x: None,
        lambda x: dist.all_reduce(x, async_op=True).wait(),
    ),
    "x.item(), after all_reduce(x)": (lambda x: dist.all_reduce(x), lambda x: x.item()),
    "barrier()": (lambda x: None, lambda x: dist.barrier()),
}


def meet(device: torch.device) -> None:
    """Return when all ranks are here and no GPU has work left."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_kept(name: str, x: torch.Tensor, late: float) -> float:
    """Seconds that the call ``name`` keeps this rank, if the last rank comes ``late``."""
    before, call = CALLS[name]
    meet(x.device)
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(late)
    before(x)
    begin = time.perf_counter()
    call(x)
    return time.perf_counter() - begin


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--late", type=float, default=0.2, help="seconds that the last rank sleeps")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 late_rank.py")
    device = start()
    x, kept = torch.zeros(1, device=device), {name: [] for name in CALLS}
    for turn in range(1 + args.rounds):  # one to warm up
        for name, took in kept.items():
            seconds = seconds_kept(name, x, args.late if turn else 0)
            took += [float(f"{seconds:.4g}")] * bool(turn)
    meet(device)
    print(json.dumps(kept))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
