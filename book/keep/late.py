"""late.py: numbers from the GPU, one step late, while it computes on."""

import warnings

import torch


class Late:
    """Takes a tensor of one number, or a vector, and returns the one before it as Python's.

    The first call returns NaN, and the first after `last` that number again. Make a new one for
    each number and epoch: it refuses another shape, dtype or device, but cannot tell two numbers
    apart that agree in these. Of a DTensor, pass `full_tensor()`.
    """

    # Not a number: there is none yet.
    host, arrived, kind = torch.tensor(float("nan"), device="cpu"), None, None

    def __call__(self, number):
        """Order a copy of this number, and return the last one; do not wait for this step."""
        kind = number.shape, number.dtype, number.device
        assert self.kind in (None, kind), f"make a Late for each: {kind} came after {self.kind}"
        before, self.kind, gpu = self.last(number.shape), kind, number.is_cuda
        self.host = number.detach().to("cpu", non_blocking=gpu, copy=True)  # into pinned memory
        self.arrived = torch.cuda.current_stream(number.device).record_event() if gpu else None
        return before

    def last(self, shape=()):
        """Wait for the number that came last, and return it: for after the loop."""
        self.arrived and self.arrived.synchronize()
        return self.host.expand(shape or self.host.shape).tolist()


if __name__ == "__main__":
    x, late = torch.arange(9.0, device="cuda" if torch.cuda.is_available() else "cpu"), Late()
    warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
    torch.cuda.set_sync_debug_mode("error") if x.is_cuda else None  # a hidden wait raises
    try:
        for step in range(3):
            x = x / 2  # your training step
            print(f"step {step} reads the mean of the step before: {late(x.mean())}")
    finally:
        torch.cuda.set_sync_debug_mode("default") if x.is_cuda else None
    print(f"after the loop, the last one: {late.last()}")
