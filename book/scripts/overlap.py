"""How much of DDP's communication hides behind the backward pass? ResNet-50, bf16, channels_last.

    torchrun --standalone --nproc-per-node=4 overlap.py --batch 256

Every case of CASES is timed with and without communication (`no_sync`). Of the cases in TRACED,
rank 0 profiles one step: when its GPU computed, when NCCL's kernels ran, and when the host asked
for them. Before that, in a process that is still clean, a wide MLP shows what
gradient_as_bucket_view saves. The last line printed is a JSON object.
"""

import argparse
import gc
import inspect
import json
import os
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from group import start, synchronize
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function
from torchvision.models import resnet50

BUFFERS = "broadcast_buffers"  # its name until torch 2.12
if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:
    BUFFERS = "forward_sync_buffers"

CASES = {
    "default": {},
    "1 MiB": {"bucket_cap_mb": 1},
    "1000 MiB": {"bucket_cap_mb": 1000},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "buffers not synced": {BUFFERS: False},
    "lean": {"gradient_as_bucket_view": True, BUFFERS: False},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "bf16_compress_hook": {},
}
TRACED = ("default", "1 MiB", "1000 MiB")
PHASES = ("forward", "backward", "optimizer")


class Trainer:
    """A model, its data, and one step of training it."""

    def __init__(self, model: nn.Module, images: torch.Tensor, options: dict, mixed: bool = True):
        self.images, self.device, self.mixed = images, images.device, mixed
        self.targets = torch.randint(10, (len(images),), device=self.device)
        self.model = DistributedDataParallel(model, **options)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def mark(self):
        """The time now, as the device will see it."""
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def step(self):
        """Train once; return marks around the backward pass, its communication included."""
        with record_function("book: forward"):
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
                loss = nn.functional.cross_entropy(self.model(self.images), self.targets)
        begin = self.mark()
        with record_function("book: backward"):
            loss.backward()
        end = self.mark()
        with record_function("book: optimizer"):
            self.optimizer.step()
        return begin, end

    def timed(self, steps: int, communicate: bool = True) -> list[float]:
        """Milliseconds of a step and of its backward pass: means, on the slowest rank."""
        synchronize()
        with nullcontext() if communicate else self.model.no_sync():
            self.step()  # fills the GPU's queue: the clock starts behind it
            begin = self.mark()
            marks = [self.step() for _ in range(steps)]
            end = self.mark()
        synchronize()
        took, backward = between(begin, end), sum(between(a, b) for a, b in marks)
        means = torch.tensor([took / steps, backward / steps], device=self.device)
        dist.all_reduce(means, dist.ReduceOp.MAX)
        return [round(mean, 3) for mean in means.tolist()]

    def peak(self, steps: int) -> float:
        """Peak MiB allocated in this process during ``steps`` steps."""
        if self.device.type == "cpu":
            return 0.0
        torch.cuda.reset_peak_memory_stats()
        for _ in range(steps):
            self.step()
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)


def between(begin, end) -> float:
    """Milliseconds from one mark to another."""
    return 1e3 * (end - begin) if isinstance(begin, float) else begin.elapsed_time(end)


def leftovers() -> float:
    """MiB still allocated when the last model is gone."""
    gc.collect()  # a wrapped model sits in reference cycles
    time.sleep(0.5)  # until NCCL's watchdog has let go of the last collectives' tensors
    return round(torch.cuda.memory_allocated() / 2**20, 1) if torch.cuda.is_available() else 0.0


def merged(spans: list, most: int = 150) -> list[list[float]]:
    """``spans`` joined across gaps, which grow from 10 us until at most ``most`` are left."""
    gap = 0.01
    while True:
        joined = []
        for begin, end in sorted(spans):
            if joined and begin - joined[-1][1] <= gap:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([begin, end])
        if len(joined) <= most:
            return [[round(a, 3), round(b, 3)] for a, b in joined]
        gap *= 1.5


def trace(trainer: Trainer) -> dict:
    """Profile one step on rank 0; all times in ms since the host began the step."""
    with profile() if dist.get_rank() == 0 else nullcontext() as profiler:
        for _ in range(3):  # nobody waits between them: the last one is as in training
            trainer.step()
        synchronize()
    if dist.get_rank() > 0:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(f"{folder}/trace.json").read_text())["traceEvents"]
    events = sorted((e for e in events if e.get("ph") == "X"), key=lambda e: e["ts"])
    phases = {e["name"]: e for e in events if e.get("cat") == "user_annotation"}  # the last step's
    zero = phases["book: forward"]["ts"]

    def span(event: dict) -> list[float]:
        return [(event["ts"] - zero) / 1e3, (event["ts"] + event["dur"] - zero) / 1e3]

    asked = {e["args"].get("correlation"): e for e in events if "cuda_" in e.get("cat", "")}
    asked = {key: span(event)[0] for key, event in asked.items()}
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    nccl = [
        event
        for event in kernels  # asked for in the last step: steps before may still be running
        if "nccl" in event["name"] and asked.get(event["args"].get("correlation"), -1) >= 0
    ]
    host = {phase: span(phases[f"book: {phase}"]) for phase in PHASES}
    compute = {phase: [] for phase in PHASES}
    for event in kernels:
        launched = asked.get(event["args"].get("correlation"), -1)
        for phase in PHASES:
            if "nccl" not in event["name"] and host[phase][0] <= launched <= host[phase][1]:
                compute[phase].append(span(event))
    return {
        "host": {phase: [round(t, 3) for t in host[phase]] for phase in PHASES},
        "compute": {phase: merged(compute[phase]) for phase in PHASES},
        "nccl": [
            {
                "name": "all-reduce" if "AllReduce" in e["name"] else "broadcast",
                "asked": round(asked.get(e["args"].get("correlation"), -1), 3),
                "span": [round(t, 3) for t in span(e)],
            }
            for e in nccl
        ],
    }


def bucket_bytes(trainer: Trainer) -> list[int]:
    """Bytes of each bucket in the order of their reduction, as DDP's log has them."""
    log = trainer.model._get_ddp_logging_data()
    sizes = log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes")
    return [int(size) for size in str(sizes).split(",")]


def measure(case: str, args: argparse.Namespace, device: torch.device) -> dict:
    """Times, peak memory, and perhaps the trace of ResNet-50 in one case."""
    gc.collect()  # the last case's model sits in reference cycles
    torch.manual_seed(0)
    model = resnet50().to(device, memory_format=torch.channels_last)
    images = torch.randn(args.batch, 3, args.pixels, args.pixels, device=device)
    images = images.to(memory_format=torch.channels_last)
    trainer = Trainer(model, images, CASES[case])
    if case == "bf16_compress_hook":
        trainer.model.register_comm_hook(None, bf16_compress_hook)
    trainer.timed(4)
    step_ms, backward_ms = trainer.timed(args.steps)
    quiet_step_ms, quiet_backward_ms = trainer.timed(args.steps, communicate=False)
    result = {
        "step_ms": step_ms,
        "backward_ms": backward_ms,
        "no_sync_step_ms": quiet_step_ms,
        "no_sync_backward_ms": quiet_backward_ms,
        "peak_mib": trainer.peak(2),
        "bucket_bytes": bucket_bytes(trainer),
    }
    if case in TRACED:
        result["trace"] = trace(trainer)
    return result


def wide_mlp_peaks(width: int, device: torch.device) -> dict:
    """Peak MiB of a model whose gradients outweigh its activations, and what lay there before."""
    peaks = {"before": []}
    for view in (False, True):
        peaks["before"].append(leftovers())
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8))).to(device)
        images, options = torch.randn(64, width, device=device), {"gradient_as_bucket_view": view}
        trainer = Trainer(model, images, options, mixed=False)
        trainer.timed(3)
        time.sleep(0.5)  # until NCCL's watchdog has let go of the first step's one big bucket
        trainer.timed(2)
        peaks["view" if view else "copy"] = trainer.peak(2)
        del trainer, model
    return peaks


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256, help="images per rank")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--width", type=int, default=4096, help="of the MLP")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=N overlap.py")
    device = start()
    result = {"ranks": dist.get_world_size(), "batch": args.batch}
    result["wide_mlp_mib"] = wide_mlp_peaks(args.width, device)
    result["cases"] = {case: measure(case, args, device) for case in CASES}
    print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
