"""Which gradients does DDP send together, and when? Two steps of a model of ten square layers.

    torchrun --standalone --nproc-per-node=2 buckets.py

One layer is registered last and used first. A communication hook notes every bucket as it is sent:
its bytes, its parameters, and how many of the ten gradients were there at that moment. The last
line printed is a JSON object.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "default": {},
    "bucket_cap_mb=25": {"bucket_cap_mb": 25},
    "find_unused_parameters=True": {"find_unused_parameters": True},
    "gradient_as_bucket_view=True": {"gradient_as_bucket_view": True},
}


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


class Tower(nn.Module):
    """Ten layers of 4 MiB; the stem comes first in the forward pass, last in the list."""

    def __init__(self, width: int = 1024):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(9)))
        self.stem = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.stem(x))


def watch(options: dict, device: torch.device) -> dict:
    """What each of two steps sends."""
    model = Tower().to(device)
    names = {p.data_ptr(): name.removesuffix(".weight") for name, p in model.named_parameters()}
    wrapped = DistributedDataParallel(model, **options)
    there, sent = [], []

    def note(state, bucket):
        parameters = [names[p.data_ptr()] for p in bucket.parameters()]
        mib = bucket.buffer().nbytes / 2**20
        sent.append({"mib": mib, "parameters": parameters, "gradients": len(there)})
        return allreduce_hook(state, bucket)

    wrapped.register_comm_hook(None, note)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(there.append)
    steps = []
    for _ in range(2):
        there.clear(), sent.clear()
        model.zero_grad()
        wrapped(torch.randn(4, 1024, device=device)).sum().backward()
        steps.append(list(sent))
    storages = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
    return {"steps": steps, "storages": len(storages)}


@record
def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 buckets.py")
    device = start()
    print(json.dumps({case: watch(options, device) for case, options in CASES.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
