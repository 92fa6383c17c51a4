"""ddp.py: training with DistributedDataParallel, on one GPU or many."""

from os import getenv

import torch
import torch.distributed as dist

if __name__ == "__main__":
    solo = {} if getenv("RANK") else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    gpu, n = torch.cuda.is_available(), int(getenv("WORLD_SIZE", getenv("SLURM_STEP_NUM_TASKS", 1)))
    # Of several, each would train alone without a rank; and they share a batch of 64 equally.
    assert 64 % n == 0 and (n == 1 or not solo), "torchrun must start it, as 1, 2, 4, ... processes"
    device = torch.device(f"cuda:{dist.get_node_local_rank(0 if solo else None)}" if gpu else "cpu")
    torch.cuda.set_device(device if gpu else -1)  # one process, one GPU; -1 changes nothing
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None, **solo)

    # Your data, the same on every rank; each takes an equal share of them, and of the batch.
    share = torch.utils.data.DistributedSampler(torch.linspace(0, 1, 640)[:, None])
    loader = torch.utils.data.DataLoader(share.dataset, 64 // n, sampler=share)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).to(device))  # yours
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(30):
        share.set_epoch(epoch)  # another order in every epoch
        for x in loader:
            optimizer.zero_grad()
            # backward() averages the gradients over the ranks
            (loss := (model(x.to(device)) - 2 * x.to(device)).square().mean()).backward()
            optimizer.step()
    dist.all_reduce(loss.detach().div_(n))  # now the mean over the ranks
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")  # without the wrapper's "module."
        print(f"{device}: weight {model.module.weight.item():.2f}, loss {loss:.4f}")
    dist.destroy_process_group()
