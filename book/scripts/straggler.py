"""Two ranks train under DDP, and rank 1 is late with its data, or not. Each rank profiles itself.

    torchrun --standalone --nproc-per-node=2 straggler.py --trace traces

Of both arms every rank writes FOLDER/ARM_rankN.json, a Chrome trace of three steps. It prints a
JSON object: {"rank", "ms": by arm, in rounds, milliseconds a step without the profiler}.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from group import start, synchronize
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function, schedule

ARMS = {"straggler": 0.005, "no_straggler": 0.0}  # the seconds that the data of rank 1 takes
WARM, STEPS = 3, 3


class Trainer:
    """Four linear layers under DDP, and one step of training them."""

    def __init__(self, device: torch.device, width: int):
        tower = [m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())]
        self.model = DistributedDataParallel(nn.Sequential(*tower).to(device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.rows = torch.randn(2 * width, width, device=device)

    def step(self, delay: float) -> None:
        """Train once; on rank 1 the data takes its time first."""
        with record_function("data"):
            time.sleep(delay * dist.get_rank())
        self.optimizer.zero_grad()
        with torch.autocast(self.rows.device.type, torch.bfloat16):
            loss = self.model(self.rows).float().square().mean()
        loss.backward()
        self.optimizer.step()


def milliseconds(trainer: Trainer, rounds: int = 12, steps: int = 20) -> dict[str, list[float]]:
    """Milliseconds a step by arm and round, in an order that both ranks draw; four rounds warm."""
    order, taken = random.Random(0), {arm: [] for arm in ARMS}
    for arm in (arm for _ in range(4 + rounds) for arm in order.sample([*ARMS], len(ARMS))):
        synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            trainer.step(ARMS[arm])
        synchronize()
        taken[arm].append(round(1e3 * (time.perf_counter() - begin) / steps, 4))
    return {arm: ms[4:] for arm, ms in taken.items()}


def trace(trainer: Trainer, delay: float, path: Path) -> None:
    """Profile three steps on every rank."""
    plan = schedule(wait=0, warmup=WARM, active=STEPS, repeat=1)
    with profile(schedule=plan, acc_events=True) as profiler:
        for step in range(WARM + STEPS):
            trainer.step(delay)
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
    ms, folder = milliseconds(trainer), Path(args.trace)
    folder.mkdir(parents=True, exist_ok=True)
    for arm, delay in ARMS.items():
        trace(trainer, delay, folder / f"{arm}_rank{dist.get_rank()}.json")
    print(json.dumps({"rank": dist.get_rank(), "ms": ms}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
