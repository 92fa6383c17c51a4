"""How long does an all-reduce take, from 1 KiB to 1 GiB, on 2, 4, 8 … ranks?

    torchrun --standalone --nproc-per-node=4 all_reduce.py

One launch measures every power of two up to the number of ranks: the first 2, then 4, … take part,
the rest wait. Printed: {"device", "library", "sizes": bytes, "seconds": {"2": [...], "4": [...]},
"one_at_a_time": the same}. `seconds` is the time of each in a row of many; `one_at_a_time` that of
a single one whose end the host waits for. Medians; the slowest rank counts.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from group import start
from torch.distributed.elastic.multiprocessing.errors import record


def seconds_each(buffer: torch.Tensor, group: dist.ProcessGroup, calls: int, blocks: int) -> float:
    """Seconds of an all-reduce: median over blocks of ``calls`` in a row."""

    def wait() -> None:
        if buffer.is_cuda:
            torch.cuda.synchronize()

    took = []
    for _ in range(2 + blocks):  # two to warm up
        dist.all_reduce(buffer, group=group)  # nobody is past this before all have come
        wait()
        begin = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(buffer, group=group)  # only enqueued, on a GPU
        wait()
        took.append((time.perf_counter() - begin) / calls)
    slowest = torch.tensor(statistics.median(took[2:]), dtype=torch.float64, device=buffer.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return float(f"{slowest.item():.4g}")


@record
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=2**30, help="bytes of the largest buffer")
    parser.add_argument("--blocks", type=int, default=31, help="timed blocks; the median counts")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=4 all_reduce.py")
    device = start()
    world = dist.get_world_size()
    sizes = [4**k for k in range(5, 20) if 4**k <= args.largest]
    counts = [n for n in (2, 4, 8, 16, 32, 64) if n <= world] or [world]
    in_a_row, one_at_a_time = {}, {}
    for count in counts:
        group = dist.new_group(range(count))  # every process has to make every group
        if dist.get_rank() < count:
            for size in sizes:
                buffer = torch.zeros(size // 4, device=device)
                calls = 20 if size < 2**26 else 5
                row = in_a_row.setdefault(str(count), [])
                row.append(seconds_each(buffer, group, calls, args.blocks))
                row = one_at_a_time.setdefault(str(count), [])
                row.append(seconds_each(buffer, group, 1, args.blocks))
                del buffer
    library = "gloo"
    if device.type == "cuda":
        library = "NCCL " + ".".join(map(str, torch.cuda.nccl.version()))
    result = {"device": device.type, "library": library, "sizes": sizes}
    print(json.dumps({**result, "seconds": in_a_row, "one_at_a_time": one_at_a_time}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
