"""Two ranks save a checkpoint twice, and the job is lost during the second time.

    torchrun --standalone --nproc-per-node=2 torn.py FOLDER

In FOLDER/same both go into one directory; in FOLDER/own each has its own, and a file names the last
that is complete. The weights of step 10 are tens, those of step 20 twenties.
"""

import argparse
import json
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor


class Lost(dcp.FileSystemWriter):
    """Rank 0 writes its part; before rank 1 does, its machine is gone."""

    def write_data(self, plan, planner):
        if dist.get_rank() == 0:
            super().write_data(plan, planner).wait()
        raise ConnectionError("the job is lost")


def save(folder: Path, step: int, writer: type = dcp.FileSystemWriter) -> None:
    """Save the state of this step."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    weights = distribute_tensor(torch.full((8,), float(step)), mesh, [Shard(0)])
    dcp.save({"weights": weights, "step": step}, storage_writer=writer(folder))


def save_and_point(folder: Path, step: int, writer: type = dcp.FileSystemWriter) -> None:
    """Save into a new directory; then, and only then, say that it is the last one."""
    save(folder / f"step{step}", step, writer)  # raises if any rank failed
    if dist.get_rank() == 0:
        with open(folder / "new", "w") as file:
            print(f"step{step}", end="", file=file, flush=True)
            os.fsync(file)  # on the disk before its name is
        os.replace(folder / "new", folder / "last")  # at once: old or new, never half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    if "RANK" not in os.environ:
        parser.parse_args() if "--help" in sys.argv else parser.error("start it with torchrun")
    folder = parser.parse_args().folder
    dist.init_process_group("gloo")
    for step, writer in ((10, dcp.FileSystemWriter), (20, Lost)):
        for way, name in ((save, "same"), (save_and_point, "own")):
            with suppress(dcp.CheckpointException):  # here the job goes on, to show what is left
                way(folder / name, step, writer)
    print(json.dumps({"rank": dist.get_rank()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
