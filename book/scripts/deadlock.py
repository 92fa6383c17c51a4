"""A deadlock made on purpose, its repair, and other ways for a group to end.

    torchrun --standalone --nproc-per-node=2 deadlock.py bug
    TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun --standalone --nproc-per-node=2 deadlock.py bug
    torchrun --standalone --nproc-per-node=2 deadlock.py repaired
    TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun --standalone --nproc-per-node=2 deadlock.py endings

The first line hangs, for as long as the time-out of the group, unless --timeout shortens it.
"""

import argparse
import json
import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def start(patience: timedelta | None) -> torch.device:
    """Join the group; one process, one device. ``patience``: how long a collective may take."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 deadlock.py")
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=patience)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=patience)
    return device


def log_loss(loss: torch.Tensor) -> None:
    """Print the mean loss, on rank 0. This is the bug: an all-reduce that only rank 0 enters."""
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print("mean loss", loss.item() / dist.get_world_size())


def log_loss_repaired(loss: torch.Tensor) -> None:
    """Everybody takes part in the collective; only the printing is rank 0's."""
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print("mean loss", loss.item() / dist.get_world_size())


def train(log: Callable[[torch.Tensor], None], device: torch.device) -> float:
    gradient = torch.ones(1000, device=device)
    dist.all_reduce(gradient)  # the step: fine on both ranks
    log(torch.tensor([1.0 + dist.get_rank()], device=device))
    dist.broadcast(gradient, src=0)  # the next thing to do: rank 1 is already here
    return gradient.sum().item()


def endings(device: torch.device) -> None:
    """What rank 0 is told of the bug, of a rank 1 that does not come, and of one that is dead."""
    rank = dist.get_rank()
    try:
        train(log_loss, device)
    except RuntimeError as error:
        print("the bug:", str(error).split(". ")[0])
        pattern = r"Rank (\d+) is running .*?OpType=(\w+), TensorShape=(\[\d+\])"
        for who, operation, shape in sorted(re.findall(pattern, str(error))):
            print(f"    rank {who}: {operation} of {shape}")
    train(log_loss_repaired, device)

    impatient = dist.new_group(timeout=timedelta(seconds=1))
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(1, device=device), group=impatient)
    except RuntimeError as error:
        print("rank 1 does not come:", error)
    dist.barrier()

    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    try:
        dist.all_reduce(torch.ones(1, device=device))
    except RuntimeError as error:
        print("rank 1 is dead:", error)
        raise


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["bug", "repaired", "endings"], nargs="?", default="bug")
    parser.add_argument("--timeout", type=int, metavar="S", help="of a collective, in seconds")
    parser.add_argument("--errors-to", metavar="FILE", help="send each rank's errors to FILE.RANK")
    args = parser.parse_args()
    if args.errors_to:
        os.dup2(os.open(f"{args.errors_to}.{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT), 2)
    device = start(timedelta(seconds=args.timeout) if args.timeout else None)
    if args.what == "endings":
        endings(device)
    total = train(log_loss if args.what == "bug" else log_loss_repaired, device)
    print(json.dumps({"rank": dist.get_rank(), "total": total}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
