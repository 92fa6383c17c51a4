"""What the measuring scripts share: how a process joins the group, and how it waits for its GPU.

Scripts import it; torchrun puts the folder of the script that it starts on their path.
"""

import os

import torch
import torch.distributed as dist


def start() -> torch.device:
    """Join the group; one process, one device."""
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def synchronize() -> None:
    """Wait for this rank's GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
