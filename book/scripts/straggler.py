"""Two ranks train under DDP, and rank 1 is late with its data. Each rank profiles itself.

    torchrun --standalone --nproc-per-node=2 straggler.py --trace traces

Every rank writes FOLDER/rankN.json, a Chrome trace of three steps, and prints a JSON object:
{"rank", "ms": milliseconds a step without the profiler, "trace": the file's name}.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from group import start, synchronize
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function, schedule

LATE, DELAY = 1, 0.005  # the rank, and the seconds that its data takes
WARM, STEPS = 3, 3


class Trainer:
    """Four linear layers under DDP, and one step of training them."""

    def __init__(self, device: torch.device, width: int):
        tower = [m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())]
        self.model = DistributedDataParallel(nn.Sequential(*tower).to(device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.rows = torch.randn(2 * width, width, device=device)

    def step(self) -> None:
        """Train once; on the late rank the data takes its time first."""
        with record_function("data"):
            if dist.get_rank() == LATE:
                time.sleep(DELAY)
        self.optimizer.zero_grad()
        with torch.autocast(self.rows.device.type, torch.bfloat16):
            loss = self.model(self.rows).float().square().mean()
        loss.backward()
        self.optimizer.step()


def milliseconds(trainer: Trainer, steps: int = 20) -> float:
    """Milliseconds a step, after a warm-up."""
    for _ in range(10):
        trainer.step()
    synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        trainer.step()
    synchronize()
    return 1e3 * (time.perf_counter() - begin) / steps


def trace(trainer: Trainer, path: Path) -> None:
    """Profile three steps on every rank."""
    plan = schedule(wait=0, warmup=WARM, active=STEPS, repeat=1)
    with profile(schedule=plan, acc_events=True) as profiler:
        for step in range(WARM + STEPS):
            trainer.step()
            if step == WARM - 1:
                synchronize()
                dist.barrier()
            profiler.step()
    profiler.export_chrome_trace(str(path))


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", metavar="FOLDER", default="traces", help="for the traces")
    parser.add_argument("--width", type=int, default=2048, help="less, to try it on a CPU")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 straggler.py")
    trainer = Trainer(start(), args.width)
    ms = milliseconds(trainer)
    path = Path(args.trace, f"rank{dist.get_rank()}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    trace(trainer, path)
    print(json.dumps({"rank": dist.get_rank(), "ms": round(ms, 4), "trace": path.name}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
