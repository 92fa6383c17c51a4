"""late.py: numbers from the GPU, one step late, while it computes on."""

import warnings

import torch


class Late:
    """Takes a tensor of one number, or a vector, and returns the one before it as Python's.

    The first call returns NaN, and the first after `last` that number again. Make a new one for
    each number, epoch and length: a mix is not always noticed. Of a DTensor, pass `full_tensor()`.
    Import it before `torch.set_default_device`, or the first NaN lies on that device.
    """

    host, arrived = torch.tensor(float("nan")), None  # not a number: there is none yet

    def __call__(self, number):
        """Order a copy of this number, and return the last one; do not wait for this step."""
        before, gpu = self.last(number.shape), number.is_cuda
        self.host = number.detach().to("cpu", non_blocking=gpu, copy=True)  # into pinned memory
        self.arrived = torch.cuda.current_stream(number.device).record_event() if gpu else None
        return before

    def last(self, shape=()):
        """Wait for the number that came last, and return it: for after the loop."""
        if self.arrived:
            self.arrived.synchronize()
        return self.host.expand(shape or self.host.shape).tolist()


if __name__ == "__main__":
    x, late = torch.arange(9.0, device="cuda" if torch.cuda.is_available() else "cpu"), Late()
    if x.is_cuda:  # from here on, a hidden wait raises
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(3):
            x = x / 2  # your training step
            print(f"step {step} reads the mean of the step before: {late(x.mean())}")
    finally:
        torch.cuda.set_sync_debug_mode("default") if x.is_cuda else None
    print(f"after the loop, the last one: {late.last()}")
