"""Where a step of FSDP2 and of tensor parallelism goes on two GPUs: profiles of both ranks, arms.

    python sharded_causes.py --size tiny     without profiles on CPU processes

What sharded_speed.py builds, profiled for three steps; then turns in one pair of processes of
FSDP2's step, tensor parallelism's, and that as one CUDA graph.
"""

import argparse
import json
import os
import random
import re
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from sharded_speed import SIZES, USUAL, WARM, WAYS, built, freed, joined, pair, rounds, say

PROFILED = ("fsdp", "no traffic", "tensor", "tensor, bf16 between blocks")
TURNS, CALLS, TRACED, LIMIT = 10, 2, 3, 75
PRODUCTS = re.compile("gemm|nvjet|cutlass|xmma|splitk|flash|fmha|cudnn|attention", re.I)
KINDS = ("products", "optimizer", "small", "messages")  # who counts when several run at once


def kind_of(name):
    if "nccl" in name:
        return "messages"
    if "Adam" in name or "multi_tensor" in name:
        return "optimizer"
    return "products" if PRODUCTS.search(name) else "small"


def split(events, steps):
    """ms of a step by what the GPU does, of the events of a trace between two marks.

    "idle" is split: "python" is what passes until something is launched that the GPU then starts.
    """
    launched = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat", "").startswith("cuda_") and "correlation" in e.get("args", {})
    }
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    work.sort(key=lambda e: e["ts"])
    marks = [e for e in work if "spin_kernel" in e["name"]]
    if len(marks) <= steps:
        return {"launches": len(work), "each": {}}
    begin, end = marks[-1 - steps]["ts"], marks[-1]["ts"]
    work = [e for e in work if begin <= e["ts"] < end and "spin_kernel" not in e["name"]]
    ends, each = [(end, 0, KINDS[0], marks[-1])], defaultdict(list)
    for e in work:
        kind = kind_of(e["name"])
        ends += [(e["ts"], 1, kind, e), (e["ts"] + e["dur"], -1, kind, e)]
        if kind == "messages":
            each[e["name"].split("(")[0]].append(e["dur"])
    ends.sort(key=lambda x: (x[0], x[1]))
    found, running, at = defaultdict(float), dict.fromkeys(KINDS, 0), begin
    for time, change, kind, e in ends:
        busy = next((k for k in KINDS if running[k]), None)
        if busy:
            found[busy] += time - at
        else:
            late = launched.get(e["args"].get("correlation"), time) > at
            found["python" if late else "idle"] += time - at
        found["messages, in all"] += (time - at) * (running["messages"] > 0)
        running[kind] += change
        at = time
    found["step"] = end - begin
    found = {name: round(us / steps / 1e3, 3) for name, us in found.items()}
    return found | {"launches": round(len(work) / steps, 1), "each": each}


def profiled(act, device, steps=TRACED):
    """Where a step goes on this rank; the first one is not counted."""
    if device.type != "cuda":
        return {"each": {}}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(steps + 1):
            torch.cuda._sleep(1)  # its kernel marks where a step begins
            act()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        seen.export_chrome_trace(f"{folder}/trace.json")
        return split(json.loads(Path(folder, "trace.json").read_text())["traceEvents"], steps)


def merged(ranks):
    """A profile of both: a message takes as long as on the rank that waited less for the other."""
    each = [rank.pop("each") for rank in ranks]
    for rank, own, other in zip(ranks, each, each[::-1], strict=True):
        sums = [0.0, 0.0, 0]
        for name, durations in own.items():
            for mine, yours in zip(durations, other.get(name, durations), strict=False):
                sums = [sums[0] + min(mine, yours), sums[1] + max(0, mine - yours), sums[2] + 1]
        moved, waited, count = (x / TRACED for x in sums)
        rank["on its way"], rank["for the other"] = round(moved / 1e3, 3), round(waited / 1e3, 3)
        rank["collectives"] = round(count, 1)
    return ranks


def in_turns(arms, found, rng):
    """ms of a step of each arm, by round, once all are warm; both ranks draw the same order."""
    for act in [*arms.values()] * WARM:
        act()
    turns = {name: [] for name in arms}
    for _ in range(TURNS):
        for name in rng.sample(list(arms), len(arms)):
            turns[name] += rounds(arms[name], found, False, 1, CALLS)
    return turns


def captured(act):
    """The step as one CUDA graph, collectives and optimizer included."""
    for group in act.args[2].param_groups:
        group["capturable"] = True
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            act()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    graph, out = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out.append(act())
    return graph.replay, out[0]


def as_one_graph(arms, found, device, rng):
    """Add tensor parallelism's step as a graph: losses before and in it, turns, profile."""
    losses = [arms["tensor"]().item() for _ in range(3)]
    replay, loss = captured(arms["tensor"])
    for _ in range(3):
        replay()
        losses.append(loss.item())
    found["losses"] = [round(bits, 5) for bits in losses]
    arms["tensor, one graph"] = replay
    found["graph"] = in_turns(arms, [device], rng)
    found["profiles"]["tensor, one graph"] = profiled(replay, device)


def measured(options):
    """A rank: profiles, then turns with a graph; each said when it is known."""
    device, meshes, _ = joined(options.rank, options.folder)
    size, rng = SIZES[options.size], random.Random(0)
    found = {"profiles": {}}
    profiled(partial(torch.ones, 1, device=device), device, 1)  # the first takes seconds to begin
    for name in PROFILED:
        freed([device])
        act = built(USUAL | WAYS[name], size, [device], meshes)
        for _ in range(WARM):
            act()
        ms = rounds(act, [device], False)
        found["profiles"][name] = profiled(act, device) | {"ms": ms}
        del act
        say(found, options.rank, options.folder)
    freed([device])
    arms = {n: built(USUAL | WAYS[n], size, [device], meshes) for n in ("fsdp", "tensor")}
    if device.type != "cuda":
        found["graph"] = in_turns(arms, [device], rng)
    else:
        try:
            as_one_graph(arms, found, device, rng)
        except Exception as error:
            found["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            say(found, options.rank, options.folder)
            os._exit(1)  # which ends the other rank, too
    say(found, options.rank, options.folder)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--folder", help="where the ranks meet")
    parser.add_argument("--rank", type=int, help="without it, both")
    options = parser.parse_args()
    if options.rank is not None:
        return measured(options)
    ranks = pair(__file__, "--size", options.size, limit=LIMIT)
    profiles = [rank.get("profiles", {}) for rank in ranks]
    both = {
        name: merged([p[name] for p in profiles]) for name in profiles[0] if name in profiles[1]
    }
    print(json.dumps(ranks[0] | {"profiles": both}))


if __name__ == "__main__":
    main()
