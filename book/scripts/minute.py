"""What a minute of one GPU is worth: whole runs of train.py, each to its end; prints JSON.

python minute.py minute   Muon, AdamW, and a loop with nanoGPT's habits, two seeds, by turns
python minute.py before   what smaller models and compressors reach, to predict from
python minute.py ends     half a minute with one thing changed: precision, clipping, batch
python minute.py rates    what products of this size, and a large one, reach on their own
"""

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import whole

SMALLER = ["2x128", "3x192", "4x256", "4x384"]  # layers x width; the model to come is 4x640
LOOPS = {"Muon": ["--muon"], "AdamW": [], "nanoGPT's habits": ["--habits", "--rate", "2e-3"]}
CHANGED = {
    "as it is": ["--steps", "1000"],
    "TF32 instead of bf16": ["--steps", "1000", "--precision", "tf32"],
    "no clipping": ["--steps", "1000", "--clip", "1e9"],
    "batches of 32, twice the steps": ["--steps", "2000", "--batch", "32", "--rate", "1.4e-3"],
}
SHAPES = [(65_536, 640, 640), (65_536, 640, 2560), (65_536, 2560, 640), (8192, 8192, 8192)]
PROMPT = "def forward(self, x):\n"


def reached(name, weights, held_out):
    """Bits per byte on all held-out bytes."""
    gpu = torch.device("cuda")
    return whole.bits_per_byte(whole.model_of(name, weights, gpu), held_out, gpu)


def before():
    """What four smaller models reach, with their weights, and what compressors make of the files.

    All run at once: only what they reach is of interest.
    """
    folder = Path(torch.__file__).parent
    training, held_out, sha = whole.train.corpus(folder)
    with ThreadPoolExecutor() as pool:
        sizes = pool.submit(whole.compressed, training, held_out)
        pieces = pool.submit(whole.overlap, folder)
        runs = list(pool.map(lambda name: whole.to_the_end(name, "--muon"), SMALLER))
    weights = {name: models[whole.STEPS] for name, (_, models) in zip(SMALLER, runs, strict=True)}
    corpus = {"training": len(training), "held out": len(held_out), "sha": sha}
    found = {"corpus": corpus, "pieces": pieces.result(), "compressed": sizes.result()}
    return found | {"reached": {n: reached(n, w, held_out) for n, w in weights.items()}}, weights


def minute():
    """Each loop's curve, seconds, joules and loss for two seeds, and what the first one writes."""
    gpu, results = torch.device("cuda"), {name: [] for name in LOOPS}
    held_out = whole.train.corpus(Path(torch.__file__).parent)[1]
    with tempfile.TemporaryDirectory() as cache:  # so that the first of each compiles
        for seed, names in enumerate([list(LOOPS), list(reversed(LOOPS))]):
            for name in names:
                at = (100, 500) if (name, seed) == ("Muon", 0) else ()
                options = [*LOOPS[name], "--seed", seed]
                found, models = whole.to_the_end("4x640", *options, at=at, cache=cache)
                nets = {step: whole.model_of("4x640", w, gpu) for step, w in models.items()}
                found["reached"] = whole.bits_per_byte(nets[whole.STEPS], held_out, gpu)
                texts = {s: whole.written(net, PROMPT, 200, gpu) for s, net in nets.items() if at}
                results[name].append(found | {"texts": texts})
    return results


def ends():
    """The loss on all held-out bytes with one thing changed; all run at once."""
    held_out = whole.train.corpus(Path(torch.__file__).parent)[1]
    with ThreadPoolExecutor() as pool:
        runs = pool.map(lambda more: whole.to_the_end("4x640", "--muon", *more), CHANGED.values())
        last = [list(models.values())[-1] for _, models in runs]
    return {name: reached("4x640", w, held_out) for name, w in zip(CHANGED, last, strict=True)}


def rates(seconds=2.0):
    """FLOP/s of some products in bf16, each for so many seconds: the power limit counts, too."""
    found = {}
    for m, k, n in SHAPES:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        calls = max(3, round(seconds * 6e14 / (2 * m * k * n)))
        a @ b
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            a @ b
        torch.cuda.synchronize()
        found[f"{m} x {k} x {n}"] = 2 * m * k * n * calls / (time.perf_counter() - start)
    return found


if __name__ == "__main__":
    works = {"minute": minute, "before": lambda: before()[0], "ends": ends, "rates": rates}
    if len(sys.argv) != 2 or sys.argv[1] not in works or not torch.cuda.is_available():
        raise SystemExit(f"{__doc__.strip()}\n\nOne of {', '.join(works)}, on a GPU")
    print(json.dumps(works[sys.argv[1]](), indent=1))
