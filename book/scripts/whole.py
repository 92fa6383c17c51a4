"""train.py as chapter 7.2 measures it: run to its end; the corpus.

python whole.py 4x640 --muon     train.py with a size of its own, and its options
python whole.py 4x640 --habits   the loop of like_nanogpt.py, not train.py's
python whole.py 4x640 --seed=1 --at-random   train.py on windows that may overlap, as there
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
from turns import Arm  # noqa: F401  (a chapter's door to it)

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("size", help="layers x width, such as 4x640")
    parser.add_argument("--habits", action="store_true", help="the loop of like_nanogpt.py")
    parser.add_argument("--at-random", action="store_true", help="no passes: windows may overlap")
    settings, options = parser.parse_known_args()
    size_of(settings.size)
    program = train
    if settings.habits:
        import like_nanogpt as program
    if settings.at_random:
        train.Windows.__call__ = windows_at_random(train.Windows.__call__)
    sys.argv = [program.__file__, "--size", settings.size, *options]
    program.main()


def windows_at_random(in_passes):
    """Windows that begin anywhere; those of validation, whose seed is 0, stay as they are."""

    def windows(self, step):
        if self.seed == 0:
            return in_passes(self, step)
        generator = torch.Generator().manual_seed(10_000 * self.seed + step)
        starts = torch.randint(len(self.data) - self.context, (self.batch,), generator=generator)
        places = starts[:, None] + torch.arange(self.context + 1)
        rows = self.data[places.to(self.data.device)].long()
        return rows[:, :-1], rows[:, 1:]

    return windows


def started(name, *options, gpu=None, cache=None, **pipes):
    """A process of this file, on one of the GPUs; `cache` is a folder for compiled kernels."""
    env = os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)})
    env |= {} if cache is None else {"TORCHINDUCTOR_CACHE_DIR": cache}
    command = [sys.executable, __file__, name, *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, **pipes)


def to_the_end(name, *options, at=(), gpu=None):
    """Train to the end. Returns the curve, the memory, and the model after some of the steps.

    The curve has a row for each line that train.py prints: step, bits per byte held out.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.pt")
        process = started(name, *options, "--checkpoint", file, gpu=gpu)
        rows, models = [], {}
        for line in process.stdout:
            if found := LINE.match(line):
                step, _, held, _, gib = (float(x.replace(",", "")) for x in found.groups())
                rows.append([int(step), held])
                if step in at:
                    models[int(step)] = saved_model(file, step)
        if process.wait():
            raise RuntimeError(f"{name} {options}: ended with {process.returncode}")
        models[int(step)] = saved_model(file, step)
    return {"curve": rows, "GiB": gib}, models


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
    """Of all bytes of the data, each predicted from at most 1,024 before it."""
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
