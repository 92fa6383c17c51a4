"""Two ranks that do not do the same, and tools that name them instead of waiting.

    torchrun --standalone --nproc-per-node=2 checks_hangs.py

ddp_checks.py runs them together with the others.
"""

import re
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import run


def mismatch(device: torch.device) -> dict:
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL says of two ranks in different collectives."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # for groups that are made from here on
    group = dist.new_group(backend="gloo")
    dist.set_debug_level(before)
    try:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), group=group)
        else:
            dist.broadcast(torch.ones(1000), src=0, group=group)
    except RuntimeError as error:
        pattern = r"Rank (\d+) is running .*?OpType=(\w+), TensorShape=(\[\d+\])"
        return {"says": str(error).split(". ")[0], "ranks": sorted(re.findall(pattern, str(error)))}
    return {}


def late(device: torch.device) -> dict:
    """What monitored_barrier says of a rank that does not come within two seconds."""
    group = dist.new_group(backend="gloo")
    said = ""
    if dist.get_rank() == 0:
        try:
            dist.monitored_barrier(group, timeout=timedelta(seconds=2), wait_all_ranks=True)
        except RuntimeError as error:
            said = str(error).splitlines()[0]
    dist.barrier()  # of the whole group: rank 1 waits here
    return {"says": said}


CHECKS = (mismatch, late)

if __name__ == "__main__":
    run(CHECKS)
