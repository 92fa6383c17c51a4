"""What does a GPU wait for under DDP? Planted cases, timed, and profiled on rank 0.

    torchrun --standalone --nproc-per-node=2 profiled_ddp.py --trace traces

tiny_batch: 2 GiB of gradients from 16 rows, mostly communication. large_batch: the same kind of
model with so much arithmetic that the all-reduces hide behind it. unequal_rows: rank 1 has four
times the rows. slow_peer, slow_self: rank 1, or rank 0, prepares its data for 20 ms a step. Rank 0
writes FOLDER/CASE.json, a Chrome trace of three steps. The last line printed is a JSON object:
{"ranks", "cases": {CASE: {"us", "relieved": {HOW: us}}}}, microseconds a step on the slowest rank,
as it is and relieved of what was planted: without the communication (`no_sync`), with equal rows,
or without the slow data.
"""

import argparse
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from group import start, synchronize
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function, schedule


class Case(NamedTuple):
    """An MLP, its batch, and what is wrong."""

    layers: int
    width: int
    rows: int
    mixed: bool = False  # bfloat16
    times: int = 1  # as many rows on every rank but 0
    late: int | None = None  # this rank's data is slow

    @property
    def relief(self) -> str:
        """What takes away that which was planted."""
        if self.late is not None:
            return "without the slow data"
        return "with equal rows" if self.times > 1 else "without the communication"


CASES = {
    "tiny_batch": Case(8, 8192, 16),
    "large_batch": Case(8, 4096, 8192, mixed=True),
    "unequal_rows": Case(8, 4096, 4096, mixed=True, times=4),
    "slow_peer": Case(4, 1024, 256, late=1),
    "slow_self": Case(4, 1024, 256, late=0),
}
DELAY = 0.02  # seconds
WARM, STEPS = 3, 3


class Trainer:
    """A tower of linear layers, wrapped in DDP, and one step of training it."""

    def __init__(self, case: Case, device: torch.device, divide: int):
        self.case, width, rows = case, case.width // divide, max(1, case.rows // divide)
        tower = [m for _ in range(case.layers) for m in (nn.Linear(width, width), nn.ReLU())]
        model = nn.Sequential(*tower).to(device)
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.equal = torch.randn(rows, width, device=device)
        self.rows = self.equal.repeat(case.times if dist.get_rank() > 0 else 1, 1)

    def data(self, relieved: bool) -> torch.Tensor:
        """A batch: late or too large, where that is planted."""
        with record_function("data"):
            if self.case.late == dist.get_rank() and not relieved:
                time.sleep(DELAY)
            return self.equal if relieved else self.rows

    def step(self, relieved: bool = False) -> None:
        """Train once."""
        rows = self.data(relieved)
        self.optimizer.zero_grad()
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=self.case.mixed):
            loss = self.model(rows).float().square().mean()
        loss.backward()
        self.optimizer.step()


def micros(trainer: Trainer, steps: int, relieved: bool = False) -> float:
    """Microseconds a step, on the slowest rank."""
    alone = relieved and trainer.case.relief == "without the communication"
    with trainer.model.no_sync() if alone else nullcontext():
        for repeat in (1, steps):
            synchronize()
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(repeat):
                trainer.step(relieved)
            synchronize()
            took = (time.perf_counter() - begin) / repeat
    slowest = torch.tensor(took, dtype=torch.float64, device=trainer.rows.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(f"{slowest.item() * 1e6:.5g}")


def trace(trainer: Trainer, path: Path) -> None:
    """Profile on rank 0, after a warm-up; every rank makes the same steps."""
    plan = schedule(wait=0, warmup=WARM, active=STEPS, repeat=1)
    traced = dist.get_rank() == 0
    profiler = profile(schedule=plan, record_shapes=True, acc_events=True)
    with profiler if traced else nullcontext():
        for step in range(WARM + STEPS):
            trainer.step()
            if step == WARM - 1:
                synchronize()
            if traced:
                profiler.step()
    if traced:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
    dist.barrier()


def measure(name: str, device: torch.device, args: argparse.Namespace) -> dict:
    """Time and profile one case."""
    trainer = Trainer(CASES[name], device, args.divide)
    for _ in range(3):  # DDP rebuilds its buckets after the first step
        trainer.step()
    result = {
        "us": micros(trainer, args.steps),
        "relieved": {trainer.case.relief: micros(trainer, args.steps, relieved=True)},
    }
    trace(trainer, Path(args.trace) / f"{name}.json")
    return result


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", metavar="FOLDER", default="traces", help="for rank 0's traces")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--divide", type=int, default=1, help="widths and rows, to try it on a CPU")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 profiled_ddp.py")
    device = start()
    cases = {name: measure(name, device, args) for name in args.case}
    print(json.dumps({"ranks": dist.get_world_size(), "cases": cases}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
