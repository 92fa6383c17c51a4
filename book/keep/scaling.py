"""scaling.py: how well this model scales here."""

import time

import torch
import torch.distributed as dist

cuda = torch.cuda.is_available()
torch.cuda.set_device(dist.get_node_local_rank(0) if cuda else -1)  # one process, one GPU
alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # without torchrun
dist.init_process_group(**({} if dist.is_torchelastic_launched() else alone))
device, width, batch = ("cuda", 2048, 8192) if cuda else ("cpu", 256, 64)


def step_ms(model, rows, steps=5):
    x, clock = torch.randn(rows, width, device=device), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(-3, steps + 1):  # first the warm-up: DDP rebuilds its buckets
        if step in (0, steps):
            x.sum().item()  # waits for the GPU
            clock.append(time.perf_counter())
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return 1e3 * (clock[1] - clock[0]) / steps


net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(device)  # yours
ddp = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
arms = (net, batch), (ddp, batch), (ddp, batch // dist.get_world_size()), (ddp, 2)
whole, weak, strong, floor = torch.tensor([[step_ms(*a) for a in arms] for _ in range(10)]).amin(0)
print(f"T1 {whole:.2f} ms, F {floor:.2f} ms, E {whole / weak:.0%}, S {whole / strong:.2f}x")
dist.destroy_process_group()
