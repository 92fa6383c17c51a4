"""ddp.py: training with DistributedDataParallel, on one GPU or many."""

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if __name__ == "__main__":
    solo = {} if "RANK" in os.environ else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    gpu, local = torch.cuda.is_available(), dist.get_node_local_rank(0)
    assert not gpu or local < torch.cuda.device_count(), f"no GPU for local rank {local}"
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    torch.cuda.set_device(device if gpu else -1)  # one process, one GPU; -1 changes nothing
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None, **solo)

    # Your data, the same on every rank; each takes an equal share of them, and of the batch.
    share = DistributedSampler(TensorDataset(torch.linspace(0, 1, 640)[:, None]))
    loader = DataLoader(share.dataset, 64 // dist.get_world_size(), sampler=share, pin_memory=gpu)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).to(device))  # yours
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in map(share.set_epoch, range(30)):  # another order in every epoch
        for x in (x.to(device, non_blocking=True) for (x,) in loader):
            optimizer.zero_grad()
            (loss := (model(x) - 2 * x).square().mean()).backward()  # averages over the ranks
            optimizer.step()
    dist.all_reduce(loss.detach().div_(dist.get_world_size()))  # now the mean over the ranks
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")  # without the wrapper's "module."
        print(f"{device}: weight {model.module.weight.item():.2f}, loss {loss:.4f}")
    dist.destroy_process_group()
