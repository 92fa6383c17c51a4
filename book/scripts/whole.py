"""book/keep/train.py, watched: how long its steps take, alone or in turn with other runs.

    python whole.py run OPTIONS      all steps; the last line is a JSON of what was seen
    python whole.py turns OPTIONS    waits for a line with a number of steps, makes them, answers
                                     with a line of JSON, [seconds, joules], and waits again

OPTIONS are those of train.py and, before them, --keep FOLDER (a file of weights for each
validation) and --plain (the loop of nanoGPT instead of train.py's, on the same model and bytes).
"""

import argparse
import ctypes
import json
import math
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "keep"))

import torch
import train
from torch import nn

FIRST = 3  # steps in which is compiled and chosen: no step's price


def seconds():
    """The time, once the GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def energy_counter():
    """A function that returns the joules of this GPU so far; without NVML, not a number."""
    try:
        nvml, handle, total = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
        wrong = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle))
    except (OSError, AssertionError, RuntimeError):  # no driver
        wrong = True

    def joules():
        if wrong or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(total)):
            return math.nan
        return total.value / 1e3

    return joules


class Watch:
    """Seconds and joules of the steps: without the first, and without saving and validation."""

    def __init__(self):
        self.joules, self.spent, self.since, self.seen = energy_counter(), [0.0, 0.0], None, []
        self.began, self.ready = seconds(), None

    def go(self):
        self.since = seconds(), self.joules()

    def stop(self):
        if self.since:
            now = seconds(), self.joules()
            self.spent = [s + b - a for s, a, b in zip(self.spent, self.since, now, strict=True)]
            self.since = None

    def over(self, rate, gathered, say):
        """The same three functions of train.py, which tell where the loop is."""

        def at_a_step(step, steps):  # called for each group of parameters
            if step > FIRST and self.ready is None:
                self.ready = seconds() - self.began
                self.go()
            return rate(step, steps)

        def at_a_checkpoint(model, optimizer, run, step):
            self.stop()
            return gathered(model, optimizer, run, step)

        def after_a_validation(text):
            say(text)
            found = re.match(r"step (\d+) of .* held out ([\d.]+)", text)
            if found:
                self.seen.append([int(found[1]), *self.spent, float(found[2])])
                self.go()

        return at_a_step, at_a_checkpoint, after_a_validation


def by_turns(rate):
    """A ``rate`` that makes the loop, which asks for it at each step, wait for its turn."""
    joules, last, left, since = energy_counter(), None, 0, None

    def turn(step, steps):
        nonlocal last, left, since
        if step != last and left == 0:
            if since:
                print(json.dumps([seconds() - since[0], joules() - since[1]]), flush=True)
                torch.cuda.empty_cache()  # the memory is the others' now
            order = sys.stdin.readline()
            if not order:
                raise SystemExit
            left, since = int(order), (seconds(), joules())
        left -= step != last
        last = step
        return rate(step, steps)

    return turn


def kept(save, folder):
    """A ``save`` that keeps the weights of each checkpoint in a folder, too."""

    def save_and_keep(path, **parts):
        save(path, **parts)
        step = int(parts["run"]["step"])
        torch.save(parts["model"], os.path.join(folder, f"{step}.pt"))

    return save_and_keep


def plain(settings, device):
    """A loop with the habits of nanoGPT's train.py, on the same model, bytes and schedule.

    It draws windows at random from the host's memory, makes the next batch while the GPU computes,
    and asks for the loss every ten steps (https://github.com/karpathy/nanoGPT).
    """
    layers, width, context, usual, *_ = train.SIZES[settings.size]
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(settings.seed)
    data, held_out, _ = train.corpus(settings.data)
    test = train.Windows(held_out.to(device), context, usual, 0)
    model = train.Transformer(layers, width, context).to(device)
    if settings.compile:
        model.compile()
    weights = list(model.parameters())
    groups = [{"params": [p for p in weights if p.dim() > 1], "weight_decay": 0.1}]
    groups += [{"params": [p for p in weights if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)

    def batch():
        starts = torch.randint(len(data) - context, (settings.batch,)).tolist()
        rows = torch.stack([data[i : i + context + 1].long() for i in starts])
        rows = rows.pin_memory() if device.type == "cuda" else rows
        rows = rows.to(device, non_blocking=True)
        return rows[:, :-1], rows[:, 1:]

    def mean(x, y):
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            return model(x, y) / y.numel()

    x, y = batch()
    for step in range(1, settings.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * train.rate(step, settings.steps)
        loss = mean(x, y) * math.log(2)  # in nats
        x, y = batch()  # while the GPU computes
        loss.backward()
        nn.utils.clip_grad_norm_(weights, settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss.item()
        if step % settings.every == 0 or step == settings.steps:
            parts = train.gathered(model, optimizer, {}, step)
            train.save(settings.checkpoint, **parts)
            with torch.no_grad():
                found = [mean(*test(k)) for k in range(min(16, test.rows // test.batch))]
            train.say(f"step {step} of {settings.steps}: held out {sum(found) / len(found):.3f}")


@torch.no_grad()
def bits_held_out(settings, device):
    """Bits per byte of the checkpoint, over all files held out, in windows from their begin."""
    layers, width, context, *_ = train.SIZES[settings.size]
    model = train.Transformer(layers, width, context).to(device)
    model.load_state_dict(torch.load(settings.checkpoint, map_location=device)["model"])
    data = train.corpus(settings.data)[1].to(device).long()
    rows = (len(data) - 1) // context
    x, y = (data[k : k + rows * context].view(rows, context) for k in (0, 1))
    total = torch.zeros((), device=device, dtype=torch.float64)
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
        for a, b in zip(x.split(64), y.split(64), strict=True):
            total += model(a, b)
    return total.item() / y.numel()


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("how", choices=("run", "turns"))
    parser.add_argument("--keep")
    parser.add_argument("--plain", action="store_true")
    options, sys.argv[1:] = parser.parse_known_args()
    if options.plain:
        train.train = plain
    if options.keep:
        train.save = kept(train.save, options.keep)
    if options.how == "turns":
        train.rate = by_turns(train.rate)
        return train.main()
    watch = Watch()
    train.rate, train.gathered, train.say = watch.over(train.rate, train.gathered, train.say)
    train.main()
    peak, settings = torch.cuda.max_memory_allocated() / 2**30, train.options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {"seen": watch.seen, "ready": watch.ready, "joules": watch.spent[1], "gib": peak}
    print(json.dumps(found | {"held_out": bits_held_out(settings, device)}), flush=True)


if __name__ == "__main__":
    main()
