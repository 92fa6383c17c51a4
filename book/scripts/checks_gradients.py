"""What happens to gradients before, during and instead of an all-reduce, on two ranks.

    torchrun --standalone --nproc-per-node=2 checks_gradients.py

ddp_checks.py runs them together with the others.
"""

from contextlib import nullcontext
from copy import deepcopy

import torch
import torch.distributed as dist
from checks import apart, gradients, run
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


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


CHECKS = (clipping, no_sync, uneven, unused)

if __name__ == "__main__":
    run(CHECKS)
