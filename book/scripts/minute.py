"""What a minute of one GPU is worth: whole runs of train.py, each to its end; prints JSON.

python minute.py sweep    a quarter of a run at three rates, to give each optimizer its own
python minute.py minute   Muon, AdamW, a loop with nanoGPT's habits, one after another
python minute.py before   what smaller models and compressors reach, to predict from
python minute.py ends     smaller runs with one thing changed: optimizer, precision, clip, batch
python minute.py rates    what products of this size, and a large one, reach on their own
"""

import argparse
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import whole

SMALLER = ["2x128", "3x192", "4x256", "4x384"]  # layers x width; the model to come is 4x640
LOOPS = {"Muon": ["--muon"], "AdamW": [], "nanoGPT's habits": ["--habits", "--rate", "2e-3"]}
PROMPT = "def forward(self, x):\n"
CHANGED = {
    "as it is": ["--muon"],
    "TF32 instead of bf16": ["--muon", "--precision", "tf32"],
    "batches of 32, rate 1.4e-3": ["--muon", "--batch=32", "--steps=4000", "--rate=1.4e-3"],
    "AdamW": [],
    "AdamW, no clipping": ["--clip", "1e9"],
}
SHAPES = [(65_536, 640, 640), (65_536, 640, 2560), (65_536, 2560, 640), (8192, 8192, 8192)]


def all_at_once(name, runs):
    """Bits per byte on all held-out bytes after runs of a size, and the models.

    Only what they reach is of interest: they share the GPU.
    """
    held_out, sha = whole.train.corpus(Path(torch.__file__).parent)[1:]
    with ThreadPoolExecutor(len(runs)) as pool:
        ended = list(pool.map(lambda options: whole.to_the_end(name, *options), runs.values()))
    last = {key: list(models.values())[-1] for key, (_, models) in zip(runs, ended, strict=True)}
    return {key: reached(name, weights, held_out) for key, weights in last.items()}, last, sha


def reached(name, weights, held_out):
    """Bits per byte on all held-out bytes."""
    gpu = torch.device("cuda")
    return whole.bits_per_byte(whole.model_of(name, weights, gpu), held_out, gpu)


def sweep():
    """What 500 steps reach, by optimizer and rate."""
    pairs = itertools.product(([], ["--muon"]), ("1e-3", "2e-3", "4e-3"))
    runs = {" ".join([*m, r]): [*m, "--rate", r, "--steps", "500"] for m, r in pairs}
    return all_at_once("4x640", runs)[0]


def before():
    """What four smaller models reach, with the weights, and what compressors make of the files."""
    training, held_out, sha = whole.train.corpus(folder := Path(torch.__file__).parent)
    with ThreadPoolExecutor() as pool:
        sizes = pool.submit(whole.compressed, training, held_out)
        pieces = pool.submit(whole.overlap, folder)
        runs = list(pool.map(lambda name: all_at_once(name, {name: ["--muon"]}), SMALLER))
    found = {"training": len(training), "held out": len(held_out), "sha": sha}
    found |= {"compressed": sizes.result(), "pieces": pieces.result()}
    return found | {"reached": {k: v for run in runs for k, v in run[0].items()}}, runs


def minute(seeds=1):
    """Each loop's curve, seconds, joules and loss for some seeds; what Muon's model writes."""
    held_out, sha = whole.train.corpus(Path(torch.__file__).parent)[1:]
    results, gpu = {"sha": sha} | {name: [] for name in LOOPS}, torch.device("cuda")
    for seed in range(seeds):
        for name in list(LOOPS)[:: -1 if seed % 2 else 1]:
            at = (100, 500) if seed == 0 and name == "Muon" else ()
            found, models = whole.to_the_end("4x640", *LOOPS[name], "--seed", seed, at=at)
            found["reached"] = reached("4x640", list(models.values())[-1], held_out)
            results[name].append(found)
            if at:
                nets = {step: whole.model_of("4x640", w, gpu) for step, w in models.items()}
                texts = {step: whole.written(net, PROMPT, 200, gpu) for step, net in nets.items()}
    return results | {"texts": texts}


def ends(seeds=3):
    """What runs of a smaller model reach with one thing changed, for some seeds."""
    pairs = itertools.product(CHANGED, range(seeds))
    runs = {f"{name}, seed {seed}": [*CHANGED[name], "--seed", seed] for name, seed in pairs}
    found, _, sha = all_at_once("4x256", runs)
    return found | {"sha": sha}


def rates(seconds=2.0):
    """FLOP/s of some products in bf16, each for so many seconds: the power limit counts, too."""
    found = {}
    for m, k, n in SHAPES:
        a, b = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
        calls = max(3, round(seconds * 6e14 / (2 * m * k * n)))
        (a @ b)[0, 0].item()
        start = time.perf_counter()
        for _ in range(calls):
            c = a @ b
        c[0, 0].item()  # which waits for all
        found[f"{m} x {k} x {n}"] = 2 * m * k * n * calls / (time.perf_counter() - start)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    works = {"sweep": sweep, "minute": minute, "before": before, "ends": ends, "rates": rates}
    parser.add_argument("what", choices=works)
    what = parser.parse_args().what
    if not torch.cuda.is_available():
        raise SystemExit("minute.py measures a GPU, and there is none")
    found = works[what]()
    print(json.dumps(found[0] if what == "before" else found, indent=1))
