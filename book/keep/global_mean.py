"""global_mean.py: the mean over all ranks' samples."""

import os

import torch
import torch.distributed as dist


def global_mean(total, count, group=None):
    """Scale a summed loss so that the average over ranks is the mean over all samples.

    This rank's count, in samples or tokens, is a number or a 0-d tensor (mask.sum()), 0 or more.
    If gradients of several batches accumulate, it is the count of all of them, for each.
    """
    dtype = torch.promote_types(total.dtype, torch.float32)  # bfloat16 cannot count beyond 256
    everywhere = torch.zeros((), dtype=dtype, device=total.device).add_(count)  # without a wait
    ranks = 1
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(everywhere, group=group)
        ranks = dist.get_world_size(group)
    return total * (ranks / (everywhere + (everywhere == 0)))  # nothing to count anywhere: 0


if __name__ == "__main__":
    # python script.py, or for four GPUs: torchrun --standalone --nproc-per-node=4 script.py
    solo = {} if "RANK" in os.environ else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = torch.device("cuda", dist.get_node_local_rank(0)) if gpu else torch.device("cpu")
    torch.cuda.set_device(device if gpu else -1)  # one process, one GPU; -1 changes nothing
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None, **solo)
    torch.manual_seed(rank := dist.get_rank())  # other numbers on every rank
    # DDP gives all ranks rank 0's weights, and averages their gradients.
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 3).to(device))  # yours
    x, y = torch.randn(8 + rank, 20).to(device), torch.arange(8 + rank).to(device) % 3  # its data
    loss = torch.nn.functional.cross_entropy(model(x), y, reduction="sum")
    global_mean(loss, len(y)).backward()
    norm = next(model.parameters()).grad.norm()
    print(f"rank {rank}: {len(y)} samples, gradient of all {norm:.3f}\n", end="")  # in one piece
    dist.destroy_process_group()
