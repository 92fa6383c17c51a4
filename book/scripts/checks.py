"""What the checks of checks_*.py share: two measures, and a command line that runs them by name."""

import argparse
import json
import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from group import start
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference between two tensors, as a fraction of the largest number in b."""
    return ((a - b).abs().max() / b.abs().max()).item()


def gradients(model: nn.Module) -> Tensor:
    """All gradients of ``model`` in one row."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@record
def run(checks: Iterable[Callable[[torch.device], dict]]) -> None:
    """Run the checks that the command line names, or all."""
    known = {check.__name__: check for check in checks}
    parser = argparse.ArgumentParser(description="Checks of DDP; without names, all of them.")
    parser.add_argument("checks", nargs="*", metavar="check", help=", ".join(known))
    names = parser.parse_args().checks or list(known)
    if unknown := set(names) - set(known):
        parser.error(f"no check called {', '.join(unknown)}; there are {', '.join(known)}")
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 ddp_checks.py")
    device = start()
    print(json.dumps({name: known[name](device) for name in names}))
    dist.destroy_process_group()
