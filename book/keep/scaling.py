"""scaling.py: how well this model scales here."""

import os
import time

import torch
import torch.distributed as dist


def step_ms(model, x, steps=5):
    """Milliseconds of a training step on these rows."""
    clock, optimizer = [], torch.optim.SGD(model.parameters(), lr=0.01)  # your optimizer
    for step in range(-3, steps + 1):  # warm-up first; ten rounds also skip DDP's slow start
        if step in (0, steps):
            x.sum().item(), clock.append(time.perf_counter())  # the first waits for the GPU
        optimizer.zero_grad()
        model(x).square().mean().backward()  # your autocast and loss; this one needs a tensor
        optimizer.step()
    return 1e3 * (clock[1] - clock[0]) / steps


if __name__ == "__main__":
    # One process, one GPU; -1 changes nothing.
    torch.cuda.set_device(dist.get_node_local_rank(0) if torch.cuda.is_available() else -1)
    alone = {} if "RANK" in os.environ else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    dist.init_process_group(**alone)
    # A batch of yours, whole:
    x = torch.randn(8192, 2048).cuda() if torch.cuda.is_available() else torch.randn(64, 256)
    assert len(x) % dist.get_world_size() == 0, "rows: not a multiple of the number of ranks"
    # Your model:
    net = torch.nn.Sequential(*[torch.nn.Linear(*2 * x.shape[1:]) for _ in range(8)]).to(x.device)
    ddp = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    # DDP first: the bare model shares its hooks, from which static_graph=True learns.
    arms = (ddp, x), (ddp, x[: len(x) // dist.get_world_size()]), (ddp, x[:2]), (net, x)
    weak, strong, floor, t1 = torch.tensor([[step_ms(*a) for a in arms] for _ in range(10)]).amin(0)
    print(f"T1 {t1:.2f} ms, F {floor:.2f} ms, E {t1 / weak:.0%}, S {t1 / strong:.2f}x\n", end="")
    dist.destroy_process_group()
