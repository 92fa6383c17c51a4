"""A training that may lose a rank: started again by torchrun, it goes on from its checkpoint.

    torchrun --standalone --nproc-per-node=2 --max-restarts=1 restarts.py --checkpoint run.pt

Rank 1 is killed after step 13 of its first life. The checkpoint is written every five steps. The
last line that each rank prints is {"life": ..., "began at": ..., "weights": [...]}.
"""

import argparse
import json
import os
import signal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

STEPS, EVERY, FATAL = 20, 5, 13


def gradient(weights: Tensor, step: int, rank: int) -> Tensor:
    """What backward() would give to ``rank``; what a batch holds follows from step and rank."""
    batch = torch.Generator().manual_seed(2 * step + rank)
    inputs = torch.randn(8, 3, generator=batch, dtype=torch.float64)
    return inputs.T @ (inputs @ weights - inputs.sum(1)) / 8


def train(path: str) -> dict:
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    state = {"step": 0, "weights": torch.zeros(3, dtype=torch.float64)}
    if os.path.exists(path):  # the same on all ranks: nobody writes before they have met again
        state = torch.load(path, map_location="cpu")
    began = state["step"]
    if rank == 0:
        print(f"life {life}: begins at step {began}", flush=True)
    while state["step"] < STEPS:
        mean = gradient(state["weights"], state["step"], rank)
        dist.all_reduce(mean)  # what DDP does in backward()
        state["weights"] -= 0.1 * mean / dist.get_world_size()
        state["step"] += 1
        if state["step"] % EVERY == 0 and rank == 0:
            torch.save(state, f"{path}.new")
            os.replace(f"{path}.new", path)
        if (life, rank, state["step"]) == (0, 1, FATAL):
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    return {"life": life, "began at": began, "weights": state["weights"].tolist()}


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="run.pt", help="a path that all machines see")
    args = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 restarts.py")
    dist.init_process_group("gloo")
    result = json.dumps(train(args.checkpoint))
    print(f"{result}\n", end="", flush=True)  # in one piece: both ranks write to one place
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
