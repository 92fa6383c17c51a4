"""global_mean.py: the mean over all ranks' samples."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

# python script.py, or for four GPUs: torchrun --standalone --nproc-per-node=4 script.py
local, ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
torch.cuda.set_device(local if on_gpu else -1)  # -1: nothing to set
torch.manual_seed(rank := int(os.environ.get("RANK", 0)))  # other numbers on every rank
model = torch.nn.Linear(20, 3).to(device)  # your model
if ranks > 1:
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    model = torch.nn.parallel.DistributedDataParallel(model)  # gives all ranks rank 0's weights


def global_mean(total, count):
    """Scale a summed loss so that the average over ranks is the mean over all samples."""
    everywhere = torch.full((), float(count), device=total.device)  # without a wait
    if ranks > 1:
        dist.all_reduce(everywhere)
    return total * ranks / everywhere


x, y = torch.randn(8 + rank, 20).to(device), torch.arange(8 + rank).to(device) % 3  # its data
global_mean(cross_entropy(model(x), y, reduction="sum"), len(y)).backward()  # DDP averages here
print(f"rank {rank}: {len(y)} samples, gradient of all {next(model.parameters()).grad.norm():.3f}")
if ranks > 1:
    dist.destroy_process_group()
