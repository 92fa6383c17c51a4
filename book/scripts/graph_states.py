"""A captured step, replayed after work of other kinds, in a process of its own: how fast is it?

    python graph_states.py 0 clock

prints JSON: for each turn its act and the milliseconds of a replay after it. With `clock` a kernel
that counts cycles follows each series of replays, with `nvml` the driver is asked during one.
"""

import ctypes
import json
import random
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, LAYERS, ROUNDS, CALLS, LIMIT = 4096, 12, 3, 20, 75  # the last: seconds of a process
CYCLES = 1_000_000


class Layer(nn.Module):
    """Four products of a vector and eight small operations, much as a decoder's layer has them."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        x = x + self.projection(torch.tanh(q) * k + v)
        return x + self.down(F.gelu(self.up(self.after(x))))


def capture(work):
    """A graph of work()."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def driver():
    """A function that asks NVML: MHz of the multiprocessors and the memory, W, °C, reasons."""
    nvml, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
        raise RuntimeError("NVML knows nothing of this GPU")
    number, reasons = ctypes.c_uint(), ctypes.c_ulonglong()

    def ask(name, *which):
        getattr(nvml, name)(handle, *which, ctypes.byref(number))
        return number.value

    def read():
        clocks = [ask("nvmlDeviceGetClockInfo", which) for which in (1, 2)]
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
        watts = round(ask("nvmlDeviceGetPowerUsage") / 1e3)
        return [*clocks, watts, ask("nvmlDeviceGetTemperature", 0), reasons.value]

    return read


def replays(graph, calls, after=None, meanwhile=None):
    """ms of a replay on the GPU and on the host's clock; cycles per µs of a kernel that follows."""
    start, end, last = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    start.record()
    for _ in range(calls):
        graph.replay()
    end.record()
    if after:
        after()
        last.record()
    said = meanwhile() if meanwhile else None
    end.synchronize()
    host = 1e3 * (time.perf_counter() - begin) / calls
    torch.cuda.synchronize()
    mhz = round(CYCLES / 1e3 / end.elapsed_time(last)) if after else None
    return start.elapsed_time(end) / calls, host, mhz, said


def acts(step, fast, reduced, graph, small):
    """What comes before a series of replays: some 0.1 s of it."""
    one, side = torch.zeros(1, device="cuda"), torch.cuda.Stream()
    source, target = (torch.ones(2**29, device="cuda") for _ in range(2))
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def often(work, times):
        for _ in range(times):
            work()

    def aside():
        with torch.cuda.stream(side):
            often(graph.replay, 30)

    def allocate():
        torch.empty(2**32, device="cuda", dtype=torch.uint8)
        torch.cuda.empty_cache()

    smi = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader"]
    return {
        "nothing": lambda: None,
        "a rest of 0.3 s": lambda: time.sleep(0.3),
        "nvidia-smi": lambda: subprocess.run(smi, capture_output=True, check=False),
        "eager step": lambda: often(step, 30),
        "compiled step": lambda: often(fast, 30),
        "reduce-overhead step": lambda: often(reduced, 40),
        "eager, tiny kernels": lambda: often(lambda: one.add_(1), 20_000),
        "graph of tiny kernels": lambda: often(small.replay, 60),
        "one kernel that counts": lambda: torch.cuda._sleep(200_000_000),
        "copy": lambda: often(lambda: target.copy_(source), 60),
        "copy by a kernel": lambda: often(lambda: torch.add(source, 1, out=target), 60),
        "large products": lambda: often(lambda: square @ square, 60),
        "memory allocated and freed": allocate,
        "the same graph, other stream": aside,
    }


@torch.no_grad()
def main():
    begin, seed, reading = time.perf_counter(), int(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    with torch.device("cuda"):
        layers = nn.Sequential(*(Layer() for _ in range(LAYERS))).bfloat16()
        x, one = torch.randn(1, WIDTH).bfloat16(), torch.zeros(1)

    def step():
        return layers(x)

    fast, reduced = torch.compile(step), torch.compile(step, mode="reduce-overhead")
    for work in (step, fast, reduced):
        for _ in range(5):
            work()
    graph, other = capture(step), capture(step)
    small = capture(lambda: [one.add_(1) for _ in range(1000)])
    after = (lambda: torch.cuda._sleep(CYCLES)) if reading == "clock" else None
    meanwhile = driver() if reading == "nvml" else None
    before, rng, turns = acts(step, fast, reduced, graph, small), random.Random(seed), []
    built = time.perf_counter() - begin
    replays(graph, 200)
    for _ in range(ROUNDS):
        for name in rng.sample(list(before), len(before)):
            if time.perf_counter() - begin > LIMIT:
                break
            before[name]()
            torch.cuda.synchronize()
            series = [replays(graph, CALLS, after, meanwhile) for _ in range(3)]
            tiny, twin = replays(small, 5)[0], replays(other, CALLS)[0]
            ms = [round(value, 4) for value in [*(s[0] for s in series), twin, tiny]]
            host = round(series[0][1], 4)
            turns.append([name, *ms, host, [s[2] for s in series], series[2][3]])
    print(json.dumps({"seed": seed, "reading": reading, "built": round(built, 1), "turns": turns}))


if __name__ == "__main__":
    main()
