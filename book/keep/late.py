"""late.py: numbers from the GPU, one step late, without a wait."""

import torch

cuda = torch.cuda.is_available()


class Late:
    """Takes a number from the GPU, and returns the one before, which has long arrived."""

    def __init__(self):
        self.host, self.arrived = torch.full((), float("nan"), pin_memory=cuda), None

    def __call__(self, number):
        if self.arrived:
            self.arrived.synchronize()  # for the step before, while this one is queued
        before = self.host.item()
        self.host.copy_(number.detach(), non_blocking=True)
        if number.is_cuda:
            self.arrived = torch.cuda.current_stream(number.device).record_event()
        return before


model = torch.nn.Linear(64, 1).to("cuda" if cuda else "cpu")
optimizer, late = torch.optim.SGD(model.parameters(), lr=0.1), Late()
x = torch.randn(512, 64, device=model.weight.device)
for step in range(5):
    if cuda and step == 1:  # from now on, after a first step, a hidden wait raises
        torch.cuda.set_sync_debug_mode("error")
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(f"loss of step {step - 1}: {late(loss):.3f}")
