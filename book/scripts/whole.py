"""train.py as chapter 7.2 measures it: run to its end, or in turns; the corpus.

python whole.py 4x640 --turns --no-compile   train.py's options; a turn for each line of input
python whole.py 4x640 --habits               the loop of like_nanogpt.py, not train.py's
"""

import argparse
import ctypes
import hashlib
import lzma
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

KEEP = Path(__file__).resolve().parent.parent / "keep"
sys.path.insert(0, str(KEEP))
import train  # noqa: E402

LINE = re.compile(
    r"step (\d+) of \d+: ([\d.]+) .* held out ([\d.]+), ([\d,.]+) kB/s, .* ([\d.]+) GiB"
)
CONTEXT, BATCH, STEPS = 1024, 64, 2000


def size_of(name, steps=STEPS):
    """Add a size to train.py's: "4x640" has 4 layers of width 640."""
    layers, width = map(int, name.split("x"))
    train.SIZES[name] = (layers, width, CONTEXT, BATCH, steps, 2e-3)


# --- a process of train.py ------------------------------------------------------------------------


def take_turns():
    """Let train.py wait, before a step, for a line with the number of steps that come next.

    It answers with their seconds, from an idle GPU to an idle GPU, and with its peak of memory. The
    loop is train.py's own: at the begin of a step it asks for the learning rate.
    """
    rate, state = train.rate, {"step": -1, "left": 0, "start": 0.0}

    def waiting(step, steps):
        if step != state["step"]:  # it asks once for each group of parameters
            state["step"], state["left"] = step, state["left"] - 1
            if state["left"] < 0:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                seconds = time.perf_counter() - state["start"]
                print("turn", seconds, torch.cuda.max_memory_allocated(), flush=True)
                state["left"] = int(sys.stdin.readline() or sys.exit()) - 1
                state["start"] = time.perf_counter()
        return rate(step, steps)

    train.rate = waiting


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("size", help="layers x width, such as 4x640")
    parser.add_argument("--turns", action="store_true", help="wait for a line before some steps")
    parser.add_argument("--habits", action="store_true", help="the loop of like_nanogpt.py")
    settings, options = parser.parse_known_args()
    size_of(settings.size)
    if settings.turns:
        take_turns()
    program = train
    if settings.habits:
        import like_nanogpt as program
    sys.argv = [program.__file__, "--size", settings.size, *options]
    program.main()


def started(name, *options, cache="", **pipes):
    """A process of this file; the folder for compiled kernels is new if `cache` is."""
    env = os.environ | ({"TORCHINDUCTOR_CACHE_DIR": cache} if cache else {})
    command = [sys.executable, __file__, name, *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, **pipes)


class Arm:
    """train.py with some options, in a process that waits for its turns."""

    def __init__(self, name, *options, metrics):
        self.folder = tempfile.TemporaryDirectory()
        options += ("--checkpoint", f"{self.folder.name}/train.pt", "--every", "100000")
        options += ("--metrics", metrics)
        self.process = started(name, "--turns", *options, stdin=subprocess.PIPE)
        self.answer()

    def answer(self):
        """Seconds of the last turn; keep the most bytes that were allocated."""
        for line in self.process.stdout:
            if line.startswith("turn "):
                seconds, self.peak = map(float, line.split()[1:])
                return seconds
        raise RuntimeError(f"an arm ended: {self.process.args}")

    def turn(self, steps):
        """Seconds of so many steps."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def to_the_end(name, *options, at=(), cache=""):
    """Train to the end. Returns the curve, the energy, and the model after some of the steps.

    The curve has a row for each line that train.py prints: step, seconds of all steps so far
    (without those of validation, and the first three), bits per byte held out. "wall" are seconds
    from the first such line to the last, with validation and saving, and "joules" the GPU's
    meanwhile; "before" are seconds before the first step's line, in which it is compiled.
    """
    joules, begun = energy_meter(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.pt")
        process = started(name, *options, "--checkpoint", file, cache=cache)
        rows, marks, models, seconds, batch = [], [], {}, 0.0, BATCH
        if "--batch" in options:
            batch = int(options[options.index("--batch") + 1])
        for line in process.stdout:
            if found := LINE.match(line):
                step, bits, held, pace, gib = (float(x.replace(",", "")) for x in found.groups())
                lot = step - (rows[-1][0] if rows else 0)
                seconds += lot * batch * CONTEXT / (1e3 * pace)
                rows.append([int(step), round(seconds, 2), held, bits])
                marks.append((time.perf_counter(), joules()))
                if step in at:
                    models[int(step)] = saved_model(file, step)
        if process.wait():
            raise RuntimeError(f"{name} {options}: ended with {process.returncode}")
        models[int(step)] = saved_model(file, step)
    (start, unused), (end, used) = marks[0], marks[-1]
    found = {"curve": rows, "GiB": gib, "wall": end - start, "joules": used - unused}
    found["before"] = start - begun
    return found, models


def saved_model(file, step):
    """The weights of train.py's checkpoint of this step, which it may be writing just now."""
    for _ in range(200):
        if file.exists():
            parts = torch.load(file, map_location="cpu", weights_only=True)
            if int(parts["run"]["step"]) == step:
                return parts["model"]
        time.sleep(0.05)
    raise RuntimeError(f"no checkpoint of step {step} in {file}")


def energy_meter():
    """A function that returns the joules of GPU 0 so far, in steps of 0.1 s; NaN without a GPU."""
    if not torch.cuda.is_available():
        return lambda: float("nan")
    nvml, handle, total = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_ulonglong()
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
        raise RuntimeError("NVML knows nothing of this GPU")

    def joules():
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(total))
        return total.value / 1e3

    return joules


# --- what a model knows ---------------------------------------------------------------------------


def model_of(name, weights, device):
    """The trained model, to be asked."""
    layers, width = map(int, name.split("x"))
    net = train.Transformer(layers, width, CONTEXT).to(device)
    net.load_state_dict(weights)
    return net.eval().requires_grad_(False)


def bits_per_byte(net, data, device):
    """Of all bytes of the data, each predicted from at most 1,023 before it."""
    rows = (len(data) - 1) // CONTEXT
    x, y = (data[i : i + rows * CONTEXT].view(rows, CONTEXT) for i in (0, 1))
    total = 0.0
    for ask, answer in zip(x.split(BATCH), y.split(BATCH), strict=True):
        with torch.autocast(device.type, torch.bfloat16):
            total += net(ask.to(device).long(), answer.to(device).long()).item()
    return total / (rows * CONTEXT)


def written(net, start, count, device, temperature=0.7):
    """So many bytes after the start, each drawn from what the model expects there."""
    generator, text = torch.Generator(device).manual_seed(0), list(start.encode())
    for _ in range(count):
        logits = net(torch.tensor([text[-CONTEXT:]], device=device))[0, -1] / temperature
        text.append(torch.multinomial(logits.softmax(0), 1, generator=generator).item())
    return bytes(text[len(start) :]).decode(errors="replace").split("\0")[0]


# --- the corpus -----------------------------------------------------------------------------------


def compressed(data, held_out):
    """Bits per byte of the held-out files by gzip, by xz, and by xz after the files to train on."""
    data, held_out = bytes(data.numpy()), bytes(held_out.numpy())
    far = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2**27}]

    def xz(text):
        return len(lzma.compress(text, filters=far))

    with ThreadPoolExecutor() as pool:  # compressing does not hold the interpreter's lock
        alone, after, before = pool.map(xz, (held_out, data + held_out, data))
    sizes = {"gzip": len(zlib.compress(held_out, 9)), "xz": alone}
    sizes["xz after the training files"] = after - before
    return {name: 8 * size / len(held_out) for name, size in sizes.items()}


def overlap(folder, length=50):
    """Part of the held-out pieces of so many bytes that stand in a training file, too.

    "before" is the corpus without any care; "after" has each file once, however often it stands
    there, as train.py reads it.
    """
    found, parts = {}, {"before": ([], []), "after": ([], [])}
    seen = set()
    for path in sorted(filter(Path.is_file, Path(folder).rglob("*.py")), key=Path.as_posix):
        text, name = path.read_bytes(), path.relative_to(folder).as_posix()
        held_out = hashlib.sha256(name.encode()).digest()[0] % 20 == 0
        parts["before"][held_out].append(text)
        if text not in seen:
            parts["after"][held_out].append(text)
        seen.add(text)
    for when, (ours, theirs) in parts.items():
        known, asked = pieces(b"\0".join(ours), length), pieces(b"\0".join(theirs), length)
        found[when] = float(np.isin(asked[::length], known).mean())
    return found | {
        "files": sum(map(len, parts["after"])),
        "all files": sum(map(len, parts["before"])),
    }


def pieces(text, length):
    """A number for each piece of the text, equal for equal pieces."""
    numbers = np.frombuffer(text, np.uint8).astype(np.uint64)
    count = max(0, len(numbers) - length + 1)
    result = np.zeros(count, np.uint64)
    for i in range(length):  # a polynomial of an odd number, modulo 2**64
        result = result * np.uint64(6364136223846793005) + numbers[i : i + count]
    return result


if __name__ == "__main__":
    main()
