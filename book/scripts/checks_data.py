"""What DDP asks of the data, the batch, the metrics and the files, checked on two ranks.

    torchrun --standalone --nproc-per-node=2 checks_data.py

ddp_checks.py runs them together with the others.
"""

import os
import shutil
import tempfile
from copy import deepcopy

import torch
import torch.distributed as dist
import train_ddp
from checks import apart, gradients, run
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def environment(device: torch.device) -> dict:
    """What torchrun told this process."""
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
    return {name: os.environ[name] for name in names}


def training(device: torch.device) -> dict:
    """What train_ddp.py returns: 44 steps in float64, which train_one.py does in one process."""
    folder = shared_folder(device)
    options = ["--data", "digits", "--double", "--epochs", "2", "--save", f"{folder}/cnn.pt"]
    result = train_ddp.run(train_ddp.arguments(options), device)
    remove(folder)
    return result


def sampler(device: torch.device) -> dict:
    """Ten samples: which does this rank train on in an epoch?"""
    data = torch.arange(10)
    torch.manual_seed(0)  # the same on every rank, as many scripts set it
    loaders = {
        "shuffle=True": DataLoader(data, batch_size=5, shuffle=True),
        "DistributedSampler": DataLoader(data, batch_size=5, sampler=DistributedSampler(data)),
    }
    return {name: torch.cat(list(loader)).tolist() for name, loader in loaders.items()}


def set_epoch(device: torch.device) -> dict:
    """The order of this rank's samples in three epochs."""
    sampler = DistributedSampler(range(10))
    forgotten = [list(sampler) for _ in range(3)]
    told = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        told.append(list(sampler))
    return {"without set_epoch": forgotten, "with set_epoch": told}


def batch(device: torch.device) -> dict:
    """DDP's gradient over the gradient of the whole batch, for ways to split and to reduce."""
    torch.manual_seed(0)
    model = nn.Linear(20, 5).to(device)
    inputs, labels = torch.randn(8, 20).to(device), torch.arange(8).to(device) % 5
    ddp = DistributedDataParallel(deepcopy(model))
    first, world = dist.get_rank() == 0, dist.get_world_size()
    halves = slice(0, 4) if first else slice(4, 8)
    uneven = slice(0, 6) if first else slice(6, 8)

    def compare(part: slice, reduction: str, factor: float = 1.0) -> list[float]:
        for net, rows in ((model, slice(None)), (ddp, part)):
            net.zero_grad()
            loss = F.cross_entropy(net(inputs[rows]), labels[rows], reduction=reduction)
            (loss * (factor if net is ddp else 1)).backward()
        whole, reduced = gradients(model), gradients(ddp)
        scale = (reduced @ whole / (whole @ whole)).item()
        return [scale, apart(reduced, scale * whole)]

    return {
        "mean of equal halves": compare(halves, "mean"),
        "sum of equal halves": compare(halves, "sum"),
        "mean of 6 and of 2": compare(uneven, "mean"),
        "sum of 6 and of 2, times 2 ranks": compare(uneven, "sum", world),
    }


def metrics(device: torch.device) -> dict:
    """An accuracy over ranks that saw different numbers of samples."""
    right, seen = (900, 1000) if dist.get_rank() == 0 else (2, 10)
    means = torch.tensor([right / seen], device=device)
    counts = torch.tensor([right, seen], device=device)
    dist.all_reduce(means)
    dist.all_reduce(counts)
    return {
        "mean of means": means.item() / dist.get_world_size(),
        "sum over count": (counts[0] / counts[1]).item(),
    }


def shared_folder(device: torch.device) -> str:
    """A new folder that all ranks of this machine know."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, device=device)
    return folder[0]


def remove(folder: str) -> None:
    """Remove ``folder``, when all ranks have read what they need."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def saving(device: torch.device) -> dict:
    """Rank 0 saves, all load. The race is made certain: all look before rank 0 saves."""
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 4, device=device)
    ddp = DistributedDataParallel(model)
    folder = shared_folder(device)
    path = f"{folder}/model.pt"

    saved = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += dist.get_rank()  # what a mistake might have done: the ranks differ now
    before = os.path.exists(path)
    dist.barrier()  # for the check only: everybody has looked
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path + ".new")
        os.replace(path + ".new", path)  # whole or not at all, under its final name
    dist.barrier()
    after = os.path.exists(path)
    model.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    remove(folder)
    return {
        "keys of ddp": list(ddp.state_dict()),
        "keys of ddp.module": list(ddp.module.state_dict()),
        "file there before the barrier": before,
        "file there after the barrier": after,
        "weights are rank 0's": torch.equal(model.weight, saved),
    }


CHECKS = (environment, training, sampler, set_epoch, batch, metrics, saving)

if __name__ == "__main__":
    run(CHECKS)
