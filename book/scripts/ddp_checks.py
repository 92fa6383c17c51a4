"""What DDP and its companions promise, each checked by a function of its own on two ranks.

    torchrun --standalone --nproc-per-node=2 ddp_checks.py                   # all checks
    torchrun --standalone --nproc-per-node=2 ddp_checks.py sampler no_sync   # two of them

The checks are in checks_data.py, checks_gradients.py, checks_model.py and checks_hangs.py. Every
rank prints one JSON object, {"check": {...}, ...}.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record


def start() -> torch.device:
    """Join the group; one process, one device."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 ddp_checks.py")
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


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
    device = start()
    print(json.dumps({name: known[name](device) for name in names}))
    dist.destroy_process_group()


if __name__ == "__main__":
    import checks_data  # here, because they import this file
    import checks_gradients
    import checks_hangs
    import checks_model

    modules = checks_data, checks_gradients, checks_model, checks_hangs
    run([check for module in modules for check in module.CHECKS])
