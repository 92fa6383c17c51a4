"""A DDP script of the kind that is copied from article to article, and its repairs, one by one.

    python five_bugs.py --show 0        # as published
    python five_bugs.py --show 5        # all five bugs repaired
    python five_bugs.py                 # run every version

The versions run with one process, on the CPU, so that they fail alike on every machine.
"""

import argparse
import json
import os
import socket

import torch
from torch import distributed as dist

SCRIPT = """\
import os
import torch
from torch import distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

def train(rank, world_size):
    backend, device = ("nccl", rank) if torch.cuda.is_available() else ("gloo", "cpu")
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    model = DistributedDataParallel(nn.Linear(10, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    for batch in loader:
        output = model(batch)
        labels = target.to(device)
        loss = criterion(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()

def main():
    world_size = torch.cuda.device_count()
    mp.spawn(train, args=(world_size,), nprocs=world_size)

if __name__ == "__main__":
    main()
"""

# Each repair: a line of the script, and what takes its place.
REPAIRS = [
    (
        "    dist.init_process_group(",
        '    os.environ["MASTER_ADDR"] = "localhost"\n'
        '    os.environ.setdefault("MASTER_PORT", "29500")\n'
        "    dist.init_process_group(",
    ),
    (
        "    loader = ",
        "    dataset = TensorDataset(torch.randn(64, 10), torch.randn(64, 1))\n    loader = ",
    ),
    ("output = model(batch)", "inputs = batch[0].to(device)\n        output = model(inputs)"),
    ("labels = target.to(device)", "labels = batch[1].to(device)"),
    ("    optimizer = ", "    criterion = nn.MSELoss()\n    optimizer = "),
]


def version(repaired: int) -> str:
    """The script with its first ``repaired`` bugs repaired."""
    source = SCRIPT
    for old, new in REPAIRS[:repaired]:
        source = source.replace(old, new)
    return source


def attempt(repaired: int) -> str | None:
    """Train with one rank; return the error, or None if there is none."""
    os.environ.pop("MASTER_ADDR", None)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    module: dict = {"__name__": "published"}
    exec(compile(version(repaired), "published.py", "exec"), module)
    try:
        module["train"](rank=0, world_size=1)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--show",
        type=int,
        choices=range(len(REPAIRS) + 1),
        metavar="N",
        help=f"print it with N bugs repaired, 0 to {len(REPAIRS)}",
    )
    args = parser.parse_args()
    if args.show is not None:
        print(version(args.show))
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same bugs on every machine
    errors = [attempt(repaired) for repaired in range(len(REPAIRS) + 1)]
    module: dict = {"__name__": "published"}
    exec(version(len(REPAIRS)), module)
    module["main"]()  # as it would be started: one process for each of zero GPUs
    print(json.dumps({"errors": errors, "processes": torch.cuda.device_count()}))


if __name__ == "__main__":
    main()
