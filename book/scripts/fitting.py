"""A GPT that does not fit, with one remedy after another: each try is a process of its own.

    python fitting.py 24x2048 24 0 3 LoRA     layers x width; at most 24 GB (0: the whole card);
                                              as written, with three remedies, with LoRA

Prints a line of JSON for each try. The tries are forks of this process, which has imported torch
and never asked for a GPU.
"""

import json
import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

BOOK = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BOOK.parent), str(BOOK / "keep")]
from sliced_loss import sliced_loss  # noqa: E402

from utils.gpt2_step import BATCH, TIME, VOCABULARY, InBackward, half_type  # noqa: E402
from utils.models import Transformer  # noqa: E402

PADDED, HEAD = 50_304, 128  # tokens; numbers of an attention head
WARM, TIMED = 3, 4  # steps
BEGIN, EACH, ALL = time.monotonic(), 100, 220  # seconds that a try may take, and all of them
REMEDIES = (
    "16 bits",  # autocast, and the padded vocabulary
    "loss in slices",
    "blocks checkpointed",
    "AdamW fused",
    "step in backward",
    "averages on the host",
)


class OnHost(InBackward):
    """Step in the backward pass; between steps AdamW's averages wait in pinned host memory."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.host = {}  # {parameter: {name: average}}

    def update(self, p):
        state = self.optimizers[p].state[p]
        for name, average in self.host.get(p, {}).items():
            state[name] = average.to(p.device, non_blocking=True)
        super().update(p)
        if p not in self.host:
            averages = ("exp_avg", "exp_avg_sq")
            self.host[p] = {name: pinned_like(state[name]) for name in averages}
        for name, average in self.host[p].items():
            average.copy_(state.pop(name), non_blocking=True)


def pinned_like(tensor):
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)


class LoRA(nn.Module):
    """A frozen linear layer, and a trained product of two thin matrices beside it."""

    def __init__(self, layer, rank=16):
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False, dtype=torch.float32)
        self.up = nn.Linear(rank, layer.out_features, bias=False, dtype=torch.float32)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def with_lora(model):
    """Freeze the model; train what stands beside the four layers of each block."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "projection", "up", "down"):
            setattr(block, name, LoRA(getattr(block, name)))
    return model


def training(layers, width, remedies, at, device):
    """A function that makes one step and returns the loss; calls ``at`` with where it is."""
    half = half_type() if device == "cuda" else torch.bfloat16
    torch.set_default_dtype(half if "LoRA" in remedies else torch.float32)
    with torch.device(device):
        vocabulary = PADDED if "16 bits" in remedies else VOCABULARY
        model = Transformer(vocabulary, width, layers, max(1, width // HEAD))
        tokens = torch.randint(VOCABULARY, (BATCH, TIME + 1))
        if "LoRA" in remedies:
            model = with_lora(model)
    torch.set_default_dtype(torch.float32)
    if "blocks checkpointed" in remedies:
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if "averages on the host" in remedies:
        optimizer = OnHost(parameters, lr=1e-4)
    elif "step in backward" in remedies:
        optimizer = InBackward(parameters, lr=1e-4)
    else:
        fused = "AdamW fused" in remedies or None  # None: PyTorch's choice
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=fused)

    def step():
        at("forward")
        optimizer.zero_grad()
        with torch.autocast(device, half, enabled="16 bits" in remedies):
            hidden = model.features(tokens[:, :-1])
            at("loss")
            if "loss in slices" in remedies:
                loss = sliced_loss(model.head, hidden, tokens[:, 1:])
            else:
                loss = F.cross_entropy(model.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())
        del hidden
        at("backward")
        loss.backward()
        at("optimizer.step()")
        optimizer.step()
        return loss.detach()

    return step


def tried(size, limit, stair):
    """Train for a few steps: the peak, seconds and losses; or where it failed, and why."""
    layers, width = map(int, size.split("x"))
    remedies = (*REMEDIES[:4], "LoRA") if stair == "LoRA" else REMEDIES[: int(stair)]
    place, device = ["before", 0], "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found = {"stair": stair, "limit": limit, "seconds": [], "losses": []}

    def at(where):
        place[:] = where, place[1] + (where == "forward")

    try:
        if device == "cuda" and limit:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit * 1e9 / total))
        if "averages on the host" in remedies:
            here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if here < 2 * 8 * 12 * layers * width**2:
                raise RuntimeError(f"too little host memory: {here / 1e9:.0f} GB.")
        torch.manual_seed(0)
        step = training(layers, width, remedies, at, device)
        for i in range(WARM + TIMED):
            if i == 1 and device == "cuda":  # the first has made the optimizer's state
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            loss = step()
            wait()
            found["seconds"].append(round(time.perf_counter() - start, 4))
            found["losses"].append(round(loss.item(), 3))
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        line = str(error).split("\n")[0]
        found |= {"error": ". ".join(line.split(". ")[:2]), "in": place[0], "step": place[1]}
    if device == "cuda":
        found["GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        found["reserved GB"] = round(torch.cuda.max_memory_reserved() / 1e9, 3)
    return found


def forked(work):
    """What ``work()`` returns in a fork of this process, which gets as long as is left."""
    seconds = max(1, min(EACH, ALL - (time.monotonic() - BEGIN)))

    def child():
        try:
            there.send(work())
        except Exception as error:
            there.send({"error": f"{type(error).__name__}: {error}"[:300]})

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=child)
    process.start()
    there.close()
    try:
        found = here.recv() if here.poll(seconds) else {"error": f"no end after {seconds:.0f} s"}
    except EOFError:
        process.join(5)
        found = {"error": f"ended with {process.exitcode}"}
    if "error" not in found:
        process.join(10)
    process.kill()
    process.join()
    return found


def main():
    size, limit, *stairs = sys.argv[1:]
    for stair in stairs:
        found = forked(partial(tried, size, float(limit), stair))
        print(json.dumps({"stair": stair, **found}), flush=True)


if __name__ == "__main__":
    main()
