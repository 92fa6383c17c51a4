"""Four collectives on a few numbers: what every rank holds before, and after.

torchrun --standalone --nproc-per-node=2 collectives.py
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def start() -> torch.device:
    """Join the group; one process, one device."""
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def collect(device: torch.device) -> dict[str, list[int]]:
    """Run each collective on this rank's own numbers: 10 r + 1, 10 r + 2, … on rank r."""
    rank, world = dist.get_rank(), dist.get_world_size()
    own = 10 * rank + 1 + torch.arange(world, device=device)

    broadcast = own.clone()
    dist.broadcast(broadcast, src=0)  # everyone gets what rank 0 had

    all_reduced = own.clone()
    dist.all_reduce(all_reduced)  # everyone gets the sum

    scattered = own.new_empty(1)
    dist.reduce_scatter_tensor(scattered, own)  # rank r gets chunk r of the sum

    gathered = own.new_empty(world)
    dist.all_gather_into_tensor(gathered, scattered)  # everyone gets everyone's chunk

    found = {"before": own, "broadcast": broadcast, "all-reduce": all_reduced}
    found |= {"reduce-scatter": scattered, "… then all-gather": gathered}
    return {name: tensor.tolist() for name, tensor in found.items()}


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 collectives.py")
    found = collect(start())
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
