"""What the ranks' models share and what they do not: statistics, weights, random numbers.

    torchrun --standalone --nproc-per-node=2 checks_model.py

ddp_checks.py runs them together with the others.
"""

from copy import deepcopy

import torch
import torch.distributed as dist
from checks import apart, gradients, run
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce  # the one that autograd knows
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class SyncNorm(nn.BatchNorm1d):
    """What nn.SyncBatchNorm computes, for the CPU, where it refuses to run: one all-reduce more."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        sums = torch.cat([x.sum(0), (x * x).sum(0), x.new_tensor([len(x)])])
        total = all_reduce(sums)
        n, c = total[-1].detach(), self.num_features
        mean, square = total[:c] / n, total[c:-1] / n
        var = square - mean * mean
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * n / (n - 1), self.momentum)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias


def batchnorm(device: torch.device) -> dict:
    """Gradients and running statistics against one process that sees the whole batch."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    whole = nn.Sequential(nn.Linear(20, 8), norm, nn.ReLU(), nn.Linear(8, 5)).to(device)
    inputs, labels = torch.randn(16, 20).to(device), torch.arange(16).to(device) % 5
    ordinary, synced = deepcopy(whole), deepcopy(whole)
    if device.type == "cuda":
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(synced)
    else:
        synced[1] = SyncNorm(8)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    F.cross_entropy(whole(inputs), labels).backward()
    found = {}
    for name, model in (("BatchNorm", ordinary), ("SyncBatchNorm", synced)):
        ddp = DistributedDataParallel(model)
        F.cross_entropy(ddp(inputs[mine]), labels[mine]).backward()
        mean = model[1].running_mean.clone()
        others = [torch.empty_like(mean) for _ in range(dist.get_world_size())]
        dist.all_gather(others, mean)
        ddp.eval()
        ddp(inputs[mine])  # every forward pass begins with rank 0's buffers
        found[name] = {
            "gradients off by": apart(gradients(model), gradients(whole)),
            "running mean off by": apart(mean, whole[1].running_mean),
            "same on all ranks": all(torch.equal(mean, other) for other in others),
            "after a forward it is rank 0's": torch.equal(model[1].running_mean, others[0]),
        }
    return found


def buffers(device: torch.device) -> dict:
    """Does the next forward pass broadcast the buffers? Asked before each of five passes."""
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device))
    asked = []
    for training in (True, False, False, True, True):
        asked.append(["training" if training else "validation", ddp.will_sync_module_buffers()])
        with torch.set_grad_enabled(training):
            loss = ddp(torch.randn(8, 4, device=device)).square().sum()
        if training:
            loss.backward()
    return {"passes": asked}


class Seeds(Dataset):
    """Each sample is the seed of the worker process that fetched it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return torch.initial_seed()


def seeds(device: torch.device) -> dict:
    """Weights, a dropout mask and a worker's seed, with one seed for all and with one a rank."""
    found = {}
    for name, seed in (("same seed", 0), ("seed + rank", 1 + dist.get_rank())):
        torch.manual_seed(seed)
        model = nn.Linear(4, 4, device=device)
        drawn = model.weight.sum().item()
        wrapped = DistributedDataParallel(model).module.weight.sum().item()
        mask = F.dropout(torch.ones(64, device=device)).tolist()
        worker = next(iter(DataLoader(Seeds(), num_workers=1))).item()
        found[name] = {
            "weights as drawn": drawn,
            "weights under DDP": wrapped,
            "dropout mask": mask,
            "seed of worker 0": worker,
        }
    return found


CHECKS = (batchnorm, buffers, seeds)

if __name__ == "__main__":
    run(CHECKS)
