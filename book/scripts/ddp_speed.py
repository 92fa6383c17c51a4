"""How fast does a model train on N devices? One process per device, synthetic images.

    torchrun --standalone --nproc-per-node=4 ddp_speed.py --model resnet50 --batch 256 \
        --dtype bfloat16 --channels-last

Several models, batch sizes and counts of ranks are measured in one launch: with `--ranks 1 2 4`
the first 1, 2 and 4 processes train while the rest waits. The last line printed is a JSON object:
{"device": "cuda", "rows": [{"model", "ranks", "batch", "wrapped", "lean", "step_ms",
"images_per_s", "peak_mib"}, ...]}; images_per_s counts the images of all ranks, and the slowest
rank's time counts.
"""

import argparse
import gc
import inspect
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from group import start
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

SHAPES = {"mlp": (1, 28, 28), "cnn": (1, 28, 28), "big_mlp": (4096,), "resnet50": (3, 224, 224)}
BUFFERS = "broadcast_buffers"  # its name until torch 2.12
if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:
    BUFFERS = "forward_sync_buffers"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build(name: str) -> nn.Module:
    """The MLP and the CNN of the MNIST tutorials, a wide MLP, or torchvision's ResNet-50."""
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    if name == "cnn":
        layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
        head = [nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10)]
        return nn.Sequential(*layers, *head)
    if name == "big_mlp":
        return nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(4096, 4096), nn.ReLU())))
    from torchvision.models import resnet50  # an import of seconds, only where it is needed

    return resnet50()


def mark(device: torch.device):
    """A moment on the device's clock."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_since(begin) -> float:
    """From ``begin`` until the device has done what it was asked for."""
    if isinstance(begin, float):
        return time.perf_counter() - begin
    end = mark(torch.device("cuda"))
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def seconds_per_step(model: nn.Module, images: torch.Tensor, args: argparse.Namespace) -> float:
    """Median over blocks of ``args.steps`` training steps, after as many for warm-up."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    targets = torch.randint(10, (len(images),), device=images.device)
    mixed = torch.autocast(images.device.type, torch.bfloat16, enabled=args.dtype == "bfloat16")

    def train() -> None:
        optimizer.zero_grad()
        with mixed:
            loss = nn.functional.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()

    took = []
    for _ in range(1 + args.blocks):
        train()  # fills the GPU's queue: the clock starts behind it, as in the midst of training
        begin = mark(images.device)
        for _ in range(args.steps):
            train()
        took.append(seconds_since(begin) / args.steps)
    return statistics.median(took[1:])


def measure(name: str, batch: int, ranks: int, how: str, group, device, args) -> dict:
    """Train on the first ``ranks`` processes; every process gets the slowest one's time."""
    took = torch.zeros(2, dtype=torch.float64, device=device)  # seconds, peak bytes
    if dist.get_rank() < ranks:
        gc.collect()  # a wrapped model sits in reference cycles: free the one before
        layout = torch.channels_last if args.channels_last else torch.contiguous_format
        model = build(name).to(device)
        images = torch.randn(batch, *SHAPES[name], device=device)
        if images.dim() == 4:
            model, images = model.to(memory_format=layout), images.to(memory_format=layout)
        if how != "plain":
            lean = {"gradient_as_bucket_view": True, BUFFERS: False} if how == "lean" else {}
            model = DistributedDataParallel(
                model,
                process_group=group,
                bucket_cap_mb=args.bucket_cap_mb,
                static_graph=args.static_graph,
                **({"gradient_as_bucket_view": args.gradient_as_bucket_view} | lean),
            )
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        took[0] = seconds_per_step(model, images, args)
        if device.type == "cuda":
            took[1] = torch.cuda.max_memory_allocated()
    dist.all_reduce(took, dist.ReduceOp.MAX)  # the idle ranks wait here
    seconds, peak = took.tolist()
    return {
        "model": name,
        "ranks": ranks,
        "batch": batch,
        "wrapped": how != "plain",
        "lean": how == "lean",
        "step_ms": float(f"{seconds * 1e3:.5g}"),
        "images_per_s": float(f"{ranks * batch / seconds:.5g}"),
        "peak_mib": round(peak / 2**20, 1),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", nargs="+", choices=SHAPES, default=["mlp"])
    add("--batch", nargs="+", type=int, default=[256], help="images per rank; several are allowed")
    add("--global-batch", nargs="*", type=int, default=[], help="images of all ranks together")
    add("--ranks", nargs="+", type=int, help="counts of ranks to measure (default: all of them)")
    add("--steps", type=int, default=20, help="steps in a timed block")
    add("--blocks", type=int, default=3, help="timed blocks; the median counts")
    add("--dtype", choices=DTYPES, default="float32", help="bfloat16: autocast")
    add("--channels-last", action="store_true")
    add("--cudnn-benchmark", action="store_true")
    add("--bucket-cap-mb", type=float, help="default: DDP's own, 25 with a first bucket of 1")
    add("--static-graph", action="store_true")
    add("--gradient-as-bucket-view", action="store_true")
    wraps = ("auto", "always", "never", "lean")
    how = "in DDP; auto: from two ranks; lean: so, with gradients as views and buffers not synced"
    add("--wrap", nargs="+", choices=wraps, default=["auto"], help=how)
    add("--no-ddp", dest="wrap", action="store_const", const=["never"], help="= --wrap never")
    return parser.parse_args()


@record
def main() -> None:
    args = arguments()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=N ddp_speed.py")
    device = start()
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    rows = []
    for ranks in args.ranks or [dist.get_world_size()]:
        every = ranks == dist.get_world_size()
        group = None if every else dist.new_group(range(ranks))  # all processes make all groups
        sizes = [*args.batch, *(size // ranks for size in args.global_batch)]
        hows = {"never": "plain", "auto": "ddp", "always": "ddp", "lean": "lean"}
        if ranks == 1:
            hows |= {"auto": "plain", "lean": "plain"}
        for name in args.model:
            for batch in dict.fromkeys(sizes):
                for how in dict.fromkeys(hows[wrap] for wrap in args.wrap):
                    rows.append(measure(name, batch, ranks, how, group, device, args))
    print(json.dumps({"device": device.type, "rows": rows}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
