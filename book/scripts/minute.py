"""What a minute of one GPU is worth: whole runs of train.py, each to its end; prints JSON.

python minute.py before   what smaller models and compressors reach, to predict from
python minute.py minute   Muon and AdamW at three rates, then each, and nanoGPT's loop, three times
python minute.py ends     smaller runs with one thing changed: precision, batch, clipping

These runs share the GPUs, several on each: what they reach counts, not how fast. Those of `in_turn`
take turns on one GPU; `python minute.py wait CORPUS 4x640 --turns` and options is one of them.
"""

import argparse
import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import torch
import turns
import whole

SMALLER = ["2x128", "3x192", "4x256", "4x384"]  # layers x width; the model to come is 4x640
LOOPS = {"Muon": ["--muon"], "AdamW": [], "nanoGPT's habits": ["--habits"]}
RATES = ["2e-3", "1e-3", "4e-3"]
SWEPT = {"AdamW": ["nanoGPT's habits", "AdamW"], "Muon": ["Muon"]}  # and who uses its best rate
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


def minute(limit=330, seeds=3, kept=None):
    """Each loop at its best of three rates, by seed; texts of Muon's run on the way.

    nanoGPT's habits take AdamW's rate. After `limit` seconds what still runs is ended: of such a
    run the record has the curve so far. `kept` is a file that gets each run when it ends.
    """
    end, gpus, runs = time.perf_counter() + limit, queue.Queue(), {}
    for gpu in [*range(torch.cuda.device_count())] * 2:
        gpus.put(gpu)

    def one(loop, rate, seed):
        gpu = gpus.get()
        try:
            asked = (*LOOPS[loop], "--rate", rate, "--seed", seed)
            at = (100, 500) if loop == "Muon" else ()
            found = clocked("4x640", *asked, gpu=gpu, at=at, end=end)
        except RuntimeError as error:  # the others go on
            found = {"failed": f"{error}"[:200]}
        finally:
            gpus.put(gpu)
        found = {"loop": loop, "rate": rate, "seed": seed} | found
        if kept:
            with open(kept, "a") as file:
                print(json.dumps(found | {"models": None}), file=file)
        return found

    with ThreadPoolExecutor(max(1, gpus.qsize())) as pool:

        def start(*run):
            if run not in runs:
                runs[run] = pool.submit(one, *run)

        for rate, loop in itertools.product(RATES, SWEPT):
            start(loop, rate, 0)
        for loop in SWEPT:  # while two places are free: a seed at the rate that may be the best
            start(loop, RATES[0], 1)
        rates = {}
        for loop, users in SWEPT.items():
            reached = {rate: runs[loop, rate, 0].result().get("reached", 9) for rate in RATES}
            best = min(RATES, key=reached.get)
            rates |= dict.fromkeys(users, best)
            for seed, user in itertools.product(range(seeds), users):
                start(user, best, seed)
    found = [run.result() for run in runs.values()]
    models = [run.pop("models", {}) for run in found][[*runs].index(("Muon", rates["Muon"], 0))]
    texts = {str(step): text_of(weights) for step, weights in models.items()}
    sha = whole.train.corpus(Path(torch.__file__).parent)[2]
    return {"sha": sha, "rates": rates, "runs": found, "texts": texts}


def clocked(size, *options, gpu=None, at=(), end=float("inf")):
    """A run, to its end unless the clock's `end` comes first: the curve, memory, some models.

    The curve has a row for each line that train.py prints: step, bits per byte held out, kB/s of
    the steps since the row before (validation, saving, the first three steps apart), seconds since
    the process began. "reached" are the bits per byte on all held-out bytes, of a run that ended.
    """
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w+") as said:
        file, begin = Path(folder, "train.pt"), time.perf_counter()
        process = whole.started(size, *options, "--checkpoint", file, gpu=gpu, stderr=said)
        clock = threading.Timer(min(max(0, end - begin), 1e5), process.kill)
        clock.daemon = True
        clock.start()
        found = {"curve": [], "models": {}}
        try:
            for line in process.stdout:
                if row := whole.LINE.match(line):
                    step, _, held, pace, gib = (float(x.replace(",", "")) for x in row.groups())
                    seconds = round(time.perf_counter() - begin, 2)
                    found["curve"].append([int(step), held, pace, seconds])
                    found["GiB"] = gib
                    if step in at:
                        found["models"][int(step)] = whole.saved_model(file, step)
            status = process.wait()
        finally:
            clock.cancel()
            process.kill()
        if status:
            said.seek(0)
            errors = [text[:200] for text in said.read().splitlines() if "rror" in text]
            cut = time.perf_counter() > end
            return found | {"failed": "cut" if cut else f"{status}: {errors[-1:]}"}
        found["models"][int(step)] = weights = whole.saved_model(file, step)
    net = whole.model_of(size, weights, torch.device(DEVICE.type, gpu or 0))
    held_out = whole.train.corpus(Path(torch.__file__).parent)[1]
    return found | {"reached": whole.bits_per_byte(net, held_out, next(net.parameters()).device)}


def in_turn(runs, folder, cold=True, limit=520):
    """Whole runs (a name: options) on one folder's files, one at a time, in this order.

    The first starts with nothing compiled before, if `cold`. Then the others start side by side,
    take two steps, and wait for their turns. After `limit` seconds, or at the time BOOK_UNTIL of
    the environment, what still runs is ended. A run is what `clocked` returns, with joules: of all
    the first one's process, of the others' turns.
    """
    limit = min(limit, float(os.environ.get("BOOK_UNTIL", "inf")) - time.time())
    end, joules, (first, *others) = time.perf_counter() + limit, whole.energy_meter(), runs
    corpus, found = whole.train.corpus(folder), {"runs": {}}

    def run(name, *more):
        before = joules()
        try:
            result = clocked("4x640", *runs[name], *more, end=end)
        except Exception as error:  # the others go on
            result = {"failed": f"{type(error).__name__}: {error}"[:200]}
        result = result | {"joules": round(joules() - before, 1)}
        kept = {key: value for key, value in result.items() if key != "models"}
        kept |= {"failed": re.sub(r"/\S+", "…", kept["failed"])} if "failed" in kept else {}
        found["runs"][name] = kept

    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        new = {"TORCHINDUCTOR_CACHE_DIR": f"{home}/kernels"} if cold else {}
        stack.enter_context(patch.dict(os.environ, new))
        stack.enter_context(patch.object(whole.train, "corpus", lambda _: corpus))
        torch.save(corpus, home / "corpus.pt")
        run(first, "--data", folder)
        begin, waiting, pipe = time.perf_counter(), {}, subprocess.PIPE
        for number, name in enumerate(others):
            (file := home / f"{number}" / "train.pt").parent.mkdir()
            command = [sys.executable, __file__, "wait", home / "corpus.pt", "4x640", "--turns"]
            command += [*runs[name], "--checkpoint", file]
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            clock = threading.Timer(max(0, end - begin), process.kill)
            clock.start()
            for undo in (process.wait, process.kill, clock.cancel):
                stack.callback(undo)
            waiting[name] = process, file
            go_on(process, 2)
        for process, _ in waiting.values():  # "turn" is said before the first step and the third
            list(itertools.islice((line for line in process.stdout if line[:5] == "turn "), 2))
        found["side by side"] = round(time.perf_counter() - begin, 1)
        for name, (process, file) in waiting.items():

            def goes_on(*asked, process=process, file=file, **_):
                asked[-1].symlink_to(file)  # where `clocked` looks for the weights
                go_on(process, 10**6)
                return process

            with patch.object(whole, "started", goes_on):
                run(name)
    return found | {"sha": corpus[2], "bytes": [len(part) for part in corpus[:2]]}


def go_on(process, steps):
    """Let a waiting process take so many steps."""
    with contextlib.suppress(OSError):  # it may have ended
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()


def wait():
    """A process of `in_turn`: the files to train on are in the file that it was given."""
    sys.argv.pop(1)
    corpus = torch.load(sys.argv.pop(1))
    whole.train.corpus = lambda folder: corpus
    turns.main()


def text_of(weights):
    """What a model writes."""
    return whole.written(whole.model_of("4x640", weights, DEVICE), PROMPT, 200, DEVICE)


def ends(seeds=3):
    """What runs of a smaller model reach with one thing changed, for some seeds."""
    pairs = itertools.product(CHANGED, range(seeds))
    runs = {(k, seed): ("4x256", "--muon", *CHANGED[k], "--seed", seed) for k, seed in pairs}
    found = all_of(runs, on_each=3)[0]
    return {k: [found[k, seed]["reached"] for seed in range(seeds)] for k in CHANGED}


if __name__ == "__main__":
    if sys.argv[1:2] == ["wait"]:
        sys.exit(wait())
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    works = {"before": before, "minute": minute, "ends": ends}
    parser.add_argument("what", choices=works)
    what = parser.parse_args().what
    if not torch.cuda.is_available():
        raise SystemExit("minute.py measures a GPU, and there is none")
    found = works[what]()
    print(json.dumps(found[0] if what == "before" else found, indent=1))
