"""stop.py: SIGTERM sets a flag, and the loop ends after the running step."""

import contextlib
import os
import signal
import threading

import torch


@contextlib.contextmanager
def until_sigterm():
    """An event that SIGTERM sets inside the block; afterwards SIGTERM does what it did before.

    So it does at once in processes that are forked inside the block: it ends them, as a rule.
    """
    stop, here = threading.Event(), os.getpid()

    def asked(number, frame):
        if os.getpid() == here:
            return stop.set()
        signal.signal(number, before)  # in a forked process
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, asked)
    with contextlib.ExitStack() as after:
        after.callback(signal.signal, signal.SIGTERM, before)
        yield stop


if __name__ == "__main__":
    weights = torch.zeros((), device=torch.accelerator.current_accelerator(True))
    with until_sigterm() as stop:
        while not stop.is_set():
            weights += 1  # a step of the training
            if weights == 37:
                signal.raise_signal(signal.SIGTERM)  # as the scheduler would
        print(f"stopped after step {int(weights)}: here save, and leave")
