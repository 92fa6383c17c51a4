"""alive_by_line.py: which lines of yours hold GPU memory."""

import linecache
import re
from collections import Counter

import torch


def made_by(frames):
    """The innermost line of yours; the backward pass has none: then its node of the graph."""
    for f in frames:
        if f["filename"].endswith(".py") and not f["filename"].startswith(torch.__path__[0]):
            return f"{f['name']}: {linecache.getline(f['filename'], f['line']).strip()}"
    node = re.search(r"(\w+)::(?:apply|evaluate_\w+)\(std", " ".join(f["name"] for f in frames))
    return f"backward pass: {node[1]}" if node else "no stack: made before the recording?"


def alive_by_line():
    sizes, counts = Counter(), Counter()
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                line = made_by(block.get("frames", []))
                sizes[line] += block["size"]
                counts[line] += 1
    return [(size, counts[line], line) for line, size in sizes.most_common()]


if torch.cuda.is_available():
    torch.cuda.memory._record_memory_history("state")  # first: older blocks have no stack
    kept = [torch.ones(1024, 1024, device="cuda") for _ in range(5)]  # your steps
for size, count, line in (torch.cuda.is_available() and alive_by_line()) or [(0, 0, "no GPU")]:
    print(f"{size / 2**20:8.1f} MiB in {count:4} blocks  {line}")
