"""GPT-2 small with one remedy after another, in a process that never compiles or in one that does.

    python remedies.py eager     the remedies to compare; compiled: with compiled steps beside them;
                                 all: every eager remedy, and 1.3 billion parameters

Says that it is ready, waits for a line, and prints a line of JSON: the seconds of a step in each
round, by group of remedies that took their turns, and each peak.
"""

import gc
import importlib
import json
import signal
import sys
import warnings
from functools import partial

import fitting  # this sets the path, too
import torch

from utils.gpt2_step import (
    BATCH,
    TIME,
    VOCABULARY,
    checkpointed,
    chunked,
    direct,
    features,
    half_type,
    keep_products,
    training,
    whole,
)
from utils.memory import GIB, peak_bytes
from utils.models import Transformer
from utils.timing import rounds_of

SECONDS = 100  # of a process, at most
FUSED = partial(torch.optim.AdamW, fused=True)
EVEN = {"amp": True, "optimizer": FUSED, "vocabulary": fitting.PADDED}
LEAN = {"head": chunked, **EVEN}


def offloaded(block, x):
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        return block(x)


def switched(switch, on, off, make, *args, **options):
    """A step that flips a switch of torch while it runs."""
    step = make(*args, **options)

    def run():
        switch(on)
        step()
        switch(off)

    return run


TF32 = partial(switched, torch.set_float32_matmul_precision, "high", "highest", training)
UNCACHED = partial(switched, torch.set_autocast_cache_enabled, False, True)


def large():
    """The 1.3 billion of fitting.py, up to the step in the backward pass."""
    return fitting.training(24, 2048, fitting.REMEDIES[:5], lambda where: None, "cuda")


def compiled_whole():
    """The step with everything from tokens to loss compiled as one, as chapter 4.3 does."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Transformer(fitting.PADDED)
        data = torch.randint(VOCABULARY, (BATCH, TIME + 1))
    optimizer = FUSED(model.parameters(), lr=1e-4)

    @torch.compile
    def loss_of(tokens):
        return whole(model, features(model, tokens[:, :-1], direct), tokens[:, 1:])

    def step():
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=half_type()):
            loss = loss_of(data)
        loss.backward()
        optimizer.step()

    return step


def groups_of(kind):
    """What makes each step of such a process, in groups that take their turns; compiled first."""
    arms = {"even vocabulary": partial(training, **EVEN), "chunked": partial(training, **LEAN)}
    if kind == "eager":
        return [arms]
    if kind == "compiled":
        blocks, loss = torch.compile(direct), torch.compile(whole)
        compiled = partial(training, run=blocks, head=loss, **EVEN)
        lean = partial(training, run=blocks, **LEAN)
        first = {"compiled": compiled, "compiled, chunked": lean, "compiled as one": compiled_whole}
        return [first | arms]
    slow = {"float32": training, "float32, TF32": TF32}
    slow["16-bit"] = partial(training, amp=True, optimizer=FUSED)
    slow["even vocabulary"] = arms["even vocabulary"]
    both = {"run": checkpointed, **LEAN}
    quick = arms | {
        "checkpointed": partial(training, run=checkpointed, **EVEN),
        "chunked by 2,048": partial(training, head=partial(chunked, size=2048), **EVEN),
        "chunked, checkpointed": partial(training, **both),
        "chunked, checkpointed, not cached": partial(UNCACHED, training, **both),
        "chunked, 4 pieces": partial(training, micro=4, **LEAN),
        "chunked, products kept": partial(training, run=keep_products, **LEAN),
        "chunked, offloaded": partial(training, run=offloaded, **LEAN),
        "all in bfloat16": partial(training, **{**both, "amp": False, "dtype": torch.bfloat16}),
    }
    return [
        slow,
        quick,
        {"1.3 billion": large, "1.3 billion, not cached": partial(UNCACHED, large)},
    ]


def measured(kind):
    """Seconds of each round, group by group, and peaks."""
    found, peaks = [], {}
    for group in groups_of(kind):
        steps = {}
        for name, make in group.items():
            gc.collect()
            before = torch.cuda.memory_allocated()
            steps[name] = make()
            for _ in range(2):  # the first makes the optimizer's state, or compiles
                steps[name]()
            peaks[name] = round((peak_bytes(steps[name]) - before) / GIB, 3)
        found.append(rounds_of(steps, rounds=8, warmup_seconds=0.5))
    return {"s": found, "GiB": peaks}


def late(*_):
    raise TimeoutError(f"no end after {SECONDS} s")


def main():
    kind = sys.argv[1]
    warnings.simplefilter("ignore")  # hints of the compiler
    if kind == "compiled":
        importlib.import_module("torch._inductor.compile_fx")
    print("ready", flush=True)
    sys.stdin.readline() or sys.exit()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        found = measured(kind)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps({"kind": kind, **found}), flush=True)


if __name__ == "__main__":
    main()
