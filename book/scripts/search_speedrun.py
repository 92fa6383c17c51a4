"""Choose the settings of speedrun.py on a part of the training set that no step reads.

    python search_speedrun.py --seconds 75 --workers 4

Trains on the first 50,000 images of the training set, and counts how many of its last 10,000 are
right; the test set is never opened. Many settings run once; of each length of training, the best
run again, and the best of those often. Prints what it found as JSON; every trial is kept in
71_search.jsonl, in the folder that OUT names, or in /tmp.
"""

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time

import torch
from speedrun import BEST, mnist
from speedrun_fast import Faster

HELD_OUT = 10_000
LENGTHS = (60, 74, 88, 102, 116, 131)  # steps
CHANNELS = ([16, 64], [24, 64], [32, 64], [24, 96], [32, 96], [48, 96])


def draw_network(rng: random.Random) -> dict:
    """What a graph has to be captured anew for."""
    return {
        "channels": rng.choice(CHANNELS),
        "filters": rng.choice([4, 6, 8, 12]),
        "shift": rng.choice([0, 1, 1]),
        "average": rng.choice([0.0, 0.1, 0.2]),
        "batch": rng.choice([192, 256, 256, 320, 384, 512]),
        "steps": rng.randrange(LENGTHS[0], LENGTHS[-1]),
        "own": torch.cuda.is_available(),
    }


def draw_numbers(rng: random.Random) -> dict:
    """What may change between two replays of a graph."""
    return {
        "rate": round(10 ** rng.uniform(-2.0, -1.2), 4),
        "beta1": rng.choice([0.6, 0.7, 0.8, 0.85]),
        "beta2": rng.choice([0.8, 0.9, 0.95, 0.98]),
        "up": rng.choice([0.1, 0.2, 0.3, 0.4]),
        "smoothing": rng.choice([0, 0.05, 0.1, 0.15, 0.2]),
        "memory": rng.choice([0.05, 0.1, 0.2, 0.3]),
        "out": rng.choice([0.0, 0.3, 1.0]),
    }


def split(images, labels):
    """To train on, and held out."""
    train, held = slice(None, -HELD_OUT), slice(-HELD_OUT, None)
    return (images[train], labels[train]), (images[held], labels[held])


def try_all(worker: int, seconds: float, todo: list, runs: int) -> None:
    """Print a line of JSON for each setting: given ones, else drawn until the time is over."""
    rng, end = random.Random(worker), time.monotonic() + seconds
    train, held = split(*mnist(True))

    def settings():
        while time.monotonic() < end:
            network = draw_network(rng)
            yield network, [draw_numbers(rng) for _ in range(10)]

    for network, numbers in [({}, [each]) for each in todo] or settings():
        try:
            race = Faster(*train, **BEST | network | numbers[0] | {"compiled": False})
            for each in numbers:
                race.change(**each)
                ms, right = [], []
                for seed in range(runs):
                    ms.append(round(race.run(1000 * worker + seed), 2))
                    right.append(race.right(*held))
                found = {"ms": statistics.median(ms), "right": [round(r, 2) for r in right]}
                print(json.dumps({"settings": network | each, **found}), flush=True)
        except RuntimeError as error:
            print(json.dumps({"error": repr(error)[:300], "settings": network}), flush=True)
        race = None
        gc.collect()  # a graph that is freed while the next one is captured spoils it
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def in_processes(workers: int, seconds: float, todo: list, runs: int, log) -> list[dict]:
    """What `workers` processes of this script print."""
    started = []
    for worker in range(workers):
        part = todo[worker::workers]
        if todo and not part:
            continue
        options = ["--worker", worker, "--seconds", seconds, "--runs", runs]
        command = [sys.executable, "-W", "ignore", __file__, *map(str, options)]
        command += ["--todo", json.dumps(part)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        )
    found = []
    for process in started:
        lines = process.communicate()[0].splitlines()
        log.writelines(line + "\n" for line in lines)
        log.flush()
        found += [json.loads(line) for line in lines if line.startswith("{")]
    return found


def length(trial: dict) -> int:
    """Which of LENGTHS a trial belongs to."""
    return sum(trial["settings"]["steps"] >= limit for limit in LENGTHS)


def best(trials: list[dict], count: int) -> list[dict]:
    """The best settings of each length."""
    groups = [[t for t in trials if length(t) == each] for each in range(len(LENGTHS) + 1)]
    ranked = [sorted(g, key=lambda t: -statistics.mean(t["right"])) for g in groups]
    return [trial["settings"] for group in ranked for trial in group[:count]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=75, help="of drawing at random")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--again", type=int, default=8, help="settings of each length, 6 runs")
    parser.add_argument("--often", type=int, default=3, help="settings of each length, 40 runs")
    parser.add_argument("--worker", type=int, help="only for the processes it starts")
    parser.add_argument("--todo", type=json.loads, default=[])
    parser.add_argument("--runs", type=int, default=1)
    a = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    if a.worker is not None:
        return try_all(a.worker, a.seconds, a.todo, a.runs)
    path = os.path.join(os.environ.get("OUT") or "/tmp", "71_search.jsonl")
    with open(path, "a") as log:
        drawn = in_processes(a.workers, a.seconds, [], 1, log)
        fine = [trial for trial in drawn if "right" in trial]
        again = in_processes(a.workers, 0, best(fine, a.again), 6, log)
        often = in_processes(
            a.workers, 0, best([t for t in again if "right" in t], a.often), 40, log
        )
        often = [t for t in often if "right" in t]
        alone = in_processes(1, 0, [t["settings"] for t in often], 5, log)
    times = {json.dumps(t["settings"]): t["ms"] for t in alone if "ms" in t}
    once = sorted(trial["right"][0] for trial in fine)
    finalists = [
        {"settings": trial["settings"], "right": round(statistics.mean(trial["right"]), 3),
         "sd": round(statistics.stdev(trial["right"]), 3), "runs": len(trial["right"]),
         "ms": times.get(json.dumps(trial["settings"]), 0.0),}
        for trial in often if len(trial["right"]) > 1
    ]  # fmt: skip
    by_length = [[length(t), t["settings"]["batch"], t["right"][0]] for t in fine]
    summary = {
        "drawn": len(fine),
        "failed": [t["error"] for t in drawn if "error" in t][:3],
        "once": [once[int(q * (len(once) - 1))] for q in (0, 0.25, 0.5, 0.75, 0.9, 1)]
        if once
        else [],
        "by length": {
            str(each): [r for le, _, r in sorted(by_length, key=lambda t: -t[2]) if le == each][:1]
            for each in range(1, len(LENGTHS))
        },
        "again": len(again),
        "finalists": finalists,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
