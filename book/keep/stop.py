"""stop.py: SIGTERM sets a flag, and the loop ends after the running step."""

import contextlib
import signal
import threading

import torch


@contextlib.contextmanager
def until_sigterm():
    """An event that SIGTERM sets inside the block; afterwards SIGTERM does what it did before."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    weights = torch.zeros((), device=torch.accelerator.current_accelerator(True))
    with until_sigterm() as stop:
        for step in range(1000):
            weights += 1  # a step of the training
            if step == 36:
                signal.raise_signal(signal.SIGTERM)  # as the scheduler would
            if stop.is_set():
                break
        print(f"stopped after step {int(weights)}: here save, and leave")
