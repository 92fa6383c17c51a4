"""What DDP and torch.distributed promise, each checked by a function of its own on two ranks.

    torchrun --standalone --nproc-per-node=2 ddp_checks.py                   # all checks
    torchrun --standalone --nproc-per-node=2 ddp_checks.py saving no_sync    # two of them

Every rank prints one JSON object, {"check": {...}, ...}.
"""

import argparse
import json
import os
import re
import shutil
import tempfile
from contextlib import nullcontext
from copy import deepcopy
from datetime import timedelta

import torch
import torch.distributed as dist
import train_ddp
from group import start
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.nn.functional import all_reduce  # the one that autograd knows
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference between two tensors, as a fraction of the largest number in b."""
    return ((a - b).abs().max() / b.abs().max()).item()


def gradients(model: nn.Module) -> Tensor:
    """All gradients of ``model`` in one row."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# --- data, batch and files ------------------------------------------------------------------------


def training(device: torch.device) -> dict:
    """What train_ddp.py returns: 44 steps in float64, which train_one.py does in one process."""
    folder = shared_folder(device)
    options = ["--data", "digits", "--double", "--epochs", "2", "--save", f"{folder}/cnn.pt"]
    result = train_ddp.run(train_ddp.arguments(options), device)
    remove(folder)
    return result


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


# --- gradients before, during and instead of an all-reduce ----------------------------------------


def clipping(device: torch.device) -> dict:
    """Norms before and after clipping; then a GradScaler, with an overflow on rank 1 only."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(20, 5).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())  # every rank its own batch
    inputs, labels = torch.randn(8, 20).to(device), torch.arange(8).to(device) % 5

    def loss() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            return F.cross_entropy(model(inputs), labels)

    with model.no_sync():
        loss().backward()
    local = gradients(model).norm().item()
    loss().backward()
    averaged = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1).item()
    clipped = gradients(model).norm().item()

    # bfloat16 needs no scaler; float16 does, and an infinity is treated alike with either.
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    weight = model.module.weight.detach().clone()
    overflow = float("inf") if dist.get_rank() == 1 else 1.0  # on one rank only
    scaler.scale(loss() * overflow).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
    scaler.step(optimizer)
    scaler.update()
    return {
        "norm of this rank's gradient": local,
        "norm that clipping sees": averaged,
        "norm after clipping": clipped,
        "scale after rank 1 overflowed": scaler.get_scale(),
        "step was skipped": torch.equal(model.module.weight, weight),
    }


def no_sync(device: torch.device) -> dict:
    """Four micro-batches: how many all-reduces, and how far from the gradient of all at once?"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 5)).to(device)
    inputs, labels = torch.randn(32, 20).to(device), torch.arange(32).to(device) % 5
    plain = deepcopy(model)
    F.cross_entropy(plain(inputs), labels).backward()
    ddp = DistributedDataParallel(model)
    calls: list[int] = []

    def count(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        calls.append(bucket.index())
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, count)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    micro = list(zip(inputs[mine].chunk(4), labels[mine].chunk(4), strict=True))

    def accumulate(quiet_forward: set[int], quiet_backward: set[int]) -> list[float]:
        calls.clear()
        ddp.zero_grad()
        for i, (x, y) in enumerate(micro):
            with ddp.no_sync() if i in quiet_forward else nullcontext():
                loss = F.cross_entropy(ddp(x), y) / len(micro)
            with ddp.no_sync() if i in quiet_backward else nullcontext():
                loss.backward()
        return [len(calls), apart(gradients(ddp), gradients(plain))]

    first_three, none, all_four = {0, 1, 2}, set(), {0, 1, 2, 3}
    return {
        "never": accumulate(none, none),
        "forward and backward of the first three": accumulate(first_three, first_three),
        "only backward of the first three": accumulate(none, first_three),
        "all four": accumulate(all_four, all_four),
    }


def uneven(device: torch.device) -> dict:
    """Rank 0 has five batches, every other rank three: Join stands in for those who have ended."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(20, 5, device=device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    steps = 0
    with Join([ddp]):
        for _ in range(5 if dist.get_rank() == 0 else 3):
            optimizer.zero_grad()
            ddp(torch.randn(4, 20, device=device)).square().mean().backward()
            optimizer.step()
            steps += 1
    weights = [torch.empty_like(ddp.module.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, ddp.module.weight.detach())
    return {"steps": steps, "same weights": all(torch.equal(w, weights[0]) for w in weights)}


class TwoHeads(nn.Module):
    """Has a head that the loss never sees."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.used, self.unused = nn.Linear(20, 8), nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.body(x).relu())


def unused(device: torch.device) -> dict:
    """Two steps of a model with a parameter that gets no gradient, without and with the search."""
    found = {}
    for search in (False, True):
        ddp = DistributedDataParallel(TwoHeads().to(device), find_unused_parameters=search)
        done, error = 0, ""
        try:
            for _ in range(2):
                ddp(torch.ones(4, 20, device=device)).sum().backward()
                done += 1
        except RuntimeError as caught:
            error = str(caught)
        found[f"find_unused_parameters={search}"] = {"steps": done, "error": error}
    return found


# --- what the models share and what not: statistics, weights, random numbers ----------------------


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


# --- two ranks that do not do the same, and tools that name them instead of waiting ---------------


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


CHECKS = (
    *(training, set_epoch, batch, saving),
    *(clipping, no_sync, uneven, unused),
    *(batchnorm, buffers, seeds),
    *(mismatch, late),
)


@record
def main() -> None:
    """Run the checks that the command line names, or all."""
    known = {check.__name__: check for check in CHECKS}
    parser = argparse.ArgumentParser(description="Checks of DDP; without names, all of them.")
    parser.add_argument("checks", nargs="*", metavar="check", help=", ".join(known))
    names = parser.parse_args().checks or list(known)
    if unknown := set(names) - set(known):
        parser.error(f"no check called {', '.join(unknown)}; there are {', '.join(known)}")
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 ddp_checks.py")
    device = start()
    print(json.dumps({name: known[name](device) for name in names}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
