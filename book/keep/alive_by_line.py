"""alive_by_line.py: which lines of yours hold GPU memory."""

import linecache
import re

import torch

PYTHON, TORCH = re.escape(linecache.__file__[: -len("linecache.py")]), re.escape(torch.__path__[0])
# Packages; compiled code; Python's own files; PyTorch's; what is not .py, unless you typed it.
NOT_YOURS = r"-packages[/\\]|torchinductor_|[/\\]c[a-z2-7]{51}\.py$"
NOT_YOURS += rf"|^({PYTHON}|{TORCH}[/\\]|(?!<st|<\w+-in).*(?<!\.py)$)"


def made_by(frames):
    """The innermost line of yours, or of a package; the backward pass has none: then its node."""
    yours = [f for f in frames if not re.search(NOT_YOURS, f["filename"])]
    others = [f for f in frames if re.search(r"-packages[/\\](?!torch[/\\]).*\.py$", f["filename"])]
    for f in yours + others:
        return f"{f['name']}: {linecache.getline(f['filename'], f['line']).strip()}"
    node = re.search(r"(\w+)::(?:apply|evaluate_\w+)\(std", " ".join(f["name"] for f in frames))
    return f"backward pass: {node[1]}" if node else "no stack: made before the recording?"


def alive_by_line():
    """(bytes asked for, blocks, "function: line"), the largest first; equal ones count as one."""
    found, segments = {}, torch.cuda.memory_snapshot() if torch.cuda.is_available() else []
    for block in [b for s in segments for b in s["blocks"] if b["state"] != "inactive"]:
        line = made_by(block.get("frames", []))
        found.setdefault(line, []).append(block["requested_size"])
    return sorted(((sum(sizes), len(sizes), line) for line, sizes in found.items()), reverse=True)


if __name__ == "__main__":
    if torch.cuda.is_available():
        torch.cuda.memory._record_memory_history("state")  # first: older blocks have no stack
        kept = [torch.ones(1024, 1024, device="cuda") for _ in range(5)]  # your steps
    for size, count, line in alive_by_line() or [(0, 0, "no GPU")]:
        print(f"{size / 2**20:8.1f} MiB in {count:4} blocks  {line}")
