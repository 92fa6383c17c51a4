"""What a minute of one GPU is worth: whole runs of train.py, each to its end; prints JSON.

python minute.py before   what smaller models and compressors reach, to predict from
python minute.py minute   Muon and AdamW at three rates, then each, and nanoGPT's loop, three times
python minute.py ends     smaller runs with one thing changed: precision, batch, clipping

Runs share the GPUs, several on each: what they reach counts, not how fast.
"""

import argparse
import itertools
import json
import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import whole

SMALLER = ["2x128", "3x192", "4x256", "4x384"]  # layers x width; the model to come is 4x640
LOOPS = {"Muon": ["--muon"], "AdamW": [], "nanoGPT's habits": ["--habits"]}
RATES = ["1e-3", "2e-3", "4e-3"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PROMPT = "def forward(self, x):\n"
CHANGED = {
    "as it is": [],
    "TF32 instead of bf16": ["--precision", "tf32"],
    "batches of 32, rate 1.4e-3": ["--batch=32", "--steps=4000", "--rate=1.4e-3"],
    "no clipping": ["--clip", "1e9"],
}


def all_of(runs, on_each=2, at=()):
    """Run each (size, *options) to its end, so many at a time on each GPU.

    Returns the curve, the memory and the bits per byte on all held-out bytes of each; the models.
    """
    gpus = queue.Queue()
    for gpu in (list(range(torch.cuda.device_count())) or [None]) * on_each:
        gpus.put(gpu)

    def one(options):
        gpu = gpus.get()
        try:
            return whole.to_the_end(*options, at=at, gpu=gpu)
        finally:
            gpus.put(gpu)

    held_out = whole.train.corpus(Path(torch.__file__).parent)[1]
    with ThreadPoolExecutor(gpus.qsize()) as pool:
        found = dict(zip(runs, pool.map(one, runs.values()), strict=True))
    for name, (result, models) in found.items():
        last = list(models.values())[-1]
        result["reached"] = reached(runs[name][0], last, held_out)
    return {k: v[0] for k, v in found.items()}, {k: v[1] for k, v in found.items()}


def reached(name, weights, held_out):
    """Bits per byte on all held-out bytes."""
    return whole.bits_per_byte(whole.model_of(name, weights, DEVICE), held_out, DEVICE)


def before():
    """What four smaller models reach, with the weights, and what compressors make of the files."""
    training, held_out, sha = whole.train.corpus(folder := Path(torch.__file__).parent)
    with ThreadPoolExecutor() as pool:
        sizes = pool.submit(whole.compressed, training, held_out)
        pieces = pool.submit(whole.overlap, folder)
        results, models = all_of({name: (name, "--muon") for name in SMALLER})
    found = {"training": len(training), "held out": len(held_out), "sha": sha}
    found |= {"compressed": sizes.result(), "pieces": pieces.result()}
    found["reached"] = {name: result["reached"] for name, result in results.items()}
    return found, {name: list(kept.values())[-1] for name, kept in models.items()}


def minute(seeds=3):
    """Each loop's runs at its best of three rates, by seed; what each rate reaches; texts."""
    pairs = itertools.product(("Muon", "AdamW"), RATES)
    runs = {(loop, r): ("4x640", *LOOPS[loop], "--rate", r, "--seed", 0) for loop, r in pairs}
    first, models = all_of(runs, at=(100, 500))
    rates = {
        loop: min(RATES, key=lambda r: first[loop, r]["reached"]) for loop in ("Muon", "AdamW")
    }
    texts = written(models["Muon", rates["Muon"]])
    found = {loop: {0: first[loop, rate]} for loop, rate in rates.items()}
    rates["nanoGPT's habits"] = rates["AdamW"]
    pairs = itertools.product(LOOPS, range(seeds))
    again = [(loop, seed) for loop, seed in pairs if seed not in found.get(loop, ())]
    runs = {
        (k, seed): ("4x640", *LOOPS[k], "--rate", rates[k], "--seed", seed) for k, seed in again
    }
    later = all_of(runs)[0]
    for loop in LOOPS:
        by_seed = found.get(loop, {}) | {seed: run for (k, seed), run in later.items() if k == loop}
        found[loop] = [by_seed[seed] for seed in range(seeds)]
    swept = {f"{loop}, {rate}": run["reached"] for (loop, rate), run in first.items()}
    sha = whole.train.corpus(Path(torch.__file__).parent)[2]
    return {"sha": sha, "rates": rates, "swept": swept, "runs": found, "texts": texts}


def written(models):
    """What a model writes after some of its steps."""
    texts = {}
    for step, weights in models.items():
        net = whole.model_of("4x640", weights, DEVICE)
        texts[step] = whole.written(net, PROMPT, 200, DEVICE)
    return texts


def ends(seeds=3):
    """What runs of a smaller model reach with one thing changed, for some seeds."""
    pairs = itertools.product(CHANGED, range(seeds))
    runs = {(k, seed): ("4x256", "--muon", *CHANGED[k], "--seed", seed) for k, seed in pairs}
    found = all_of(runs, on_each=3)[0]
    return {k: [found[k, seed]["reached"] for seed in range(seeds)] for k in CHANGED}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    works = {"before": before, "minute": minute, "ends": ends}
    parser.add_argument("what", choices=works)
    what = parser.parse_args().what
    if not torch.cuda.is_available():
        raise SystemExit("minute.py measures a GPU, and there is none")
    found = works[what]()
    print(json.dumps(found[0] if what == "before" else found, indent=1))
