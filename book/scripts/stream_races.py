"""Run one order of two streams ten times, and print as JSON how often the result was wrong.

    TORCH_CUDA_SANITIZER=1 python stream_races.py forgotten

With the sanitizer, the first launch that races raises; what it says is printed, too.
"""

import argparse
import json
import os
import re
import time

import torch

SIZE = 2**20
CYCLES = 4_000_000  # 2 ms at 2 GHz


def forgotten(main, side, x):
    """The side stream reads what the main stream has yet to write."""
    torch.cuda._sleep(CYCLES)
    x.fill_(1)
    with torch.cuda.stream(side):
        total = x.sum()
    return total


def waited(main, side, x):
    """The same, in order."""
    torch.cuda._sleep(CYCLES)
    x.fill_(1)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        total = x.sum()
    return total


def overwritten(main, side, x):
    """The main stream writes again what the side stream has yet to read."""
    x.fill_(1)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        total = x.sum()
    x.fill_(2)
    return total


def reused(main, side, x):
    """A block is given away while the side stream still has to read it."""
    batch = torch.ones(SIZE, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        total = batch.sum()
    del batch
    torch.zeros(SIZE, device="cuda")  # the same block
    return total


def graphed(main, side, x):
    """As `forgotten`, with the write hidden in a CUDA graph."""
    torch.cuda._sleep(CYCLES)
    graphed.graph.replay()
    with torch.cuda.stream(side):
        total = x.sum()
    return total


CASES = (forgotten, waited, overwritten, reused, graphed)


def short(report):
    """The lines of a report that name the two kernels, and the lines of this file."""
    lines, kept = report.splitlines(), []
    for number, line in enumerate(lines):
        if re.search(r"data race|Access by|Previous access|writing to|reading from", line):
            kept.append(re.sub(r"pointer \d+", "pointer …", line.strip()))
        elif re.match(r"\s*aten::", line):
            kept.append(re.split(r"\(", line.strip())[0])
        elif "stream_races.py" in line and number + 1 < len(lines):
            kept.append(lines[number + 1].strip())
    return kept


def main(name):
    order = {case.__name__: case for case in CASES}[name]
    stream, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = torch.zeros(SIZE, device="cuda")
    x.sum()
    if order is graphed:
        graphed.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphed.graph):
            x.fill_(1)
    found = {"case": name, "wrong": 0, "report": [], "error": ""}
    begin = time.perf_counter()
    try:
        for _ in range(10):
            x.fill_(0)
            torch.cuda.synchronize()
            total = order(stream, side, x)
            torch.cuda.synchronize()
            found["wrong"] += total.item() != SIZE
    except Exception as error:
        if type(error).__name__ == "CUDASanitizerErrors":
            found["report"] = short(str(error.errors[0]))
        else:
            found["error"] = f"{type(error).__name__}: {str(error)[:200]}"
    found["ms"] = 1e3 * (time.perf_counter() - begin)
    found["sanitizer"] = os.environ.get("TORCH_CUDA_SANITIZER", "0")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=[case.__name__ for case in CASES], metavar="CASE",
                        help=", ".join(case.__name__ for case in CASES))  # fmt: skip
    main(parser.parse_args().case)
