"""What lands on GPU 0 when a rank names its GPU but never calls set_device.

    torchrun --standalone --nproc-per-node=2 no_set_device.py

Every rank prints {"GPU 0 in use, MiB": {step: ...}, "context there": {step: ...}, "error": "..."}.
"""

import argparse
import json
import os
import re
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

MIB = 2**20


@record
def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=2 no_set_device.py")
    local = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("cpu:gloo,cuda:nccl")  # no device_id, no set_device
    path = os.path.join(tempfile.gettempdir(), f"no_set_device_{os.environ['MASTER_PORT']}.pt")
    kept, used, context = [], {}, {}

    def step(name: str, work: Callable[[], object]) -> None:
        kept.append(work())  # tensors stay, so that their memory does
        dist.all_reduce(torch.zeros(1))  # a CPU tensor goes through gloo: all have done it
        if local == 0:
            free, total = torch.cuda.mem_get_info(0)
            used[name] = (total - free) // MIB
        context[name] = torch._C._cuda_hasPrimaryContext(0)
        dist.all_reduce(torch.zeros(1))

    step("nothing yet", lambda: None)
    step("64 MiB on cuda:LOCAL_RANK", lambda: filled(64, f"cuda:{local}"))
    step("a product there", lambda: kept[1].view(4096, 4096) @ kept[1].view(4096, 4096))
    step("torch.cuda.synchronize()", torch.cuda.synchronize)
    if local == 0:
        torch.save(kept[1], path)
    step("nothing, while rank 0 saves", lambda: None)
    step("torch.load without map_location", lambda: torch.load(path))
    step("256 MiB, moved with .cuda()", lambda: filled(256, "cpu").cuda())
    error = ""
    try:
        dist.all_reduce(kept[-1])
        torch.cuda.synchronize()
    except RuntimeError as caught:
        error = re.sub(r" (0x)?[0-9a-f]{4,}\b", " ...", str(caught))
    if local == 0:
        os.remove(path)
    print(
        json.dumps({"GPU 0 in use, MiB": used, "context there": context, "error": error}),
        flush=True,
    )
    dist.all_reduce(torch.zeros(1))
    os._exit(0)  # the NCCL group is broken: there is nothing to destroy in good order


def filled(mib: int, device: str) -> torch.Tensor:
    return torch.ones(mib * MIB // 4, device=device)


if __name__ == "__main__":
    main()
