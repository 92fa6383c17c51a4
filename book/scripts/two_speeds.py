"""A captured step at its slow or its fast speed, one act, and the step again: does the act set it?

    python two_speeds.py 0 compiled more

prints JSON: a turn for each act and speed. A process that is `plain` never compiles a step, and has
no way to make the graph fast on purpose. With `more` there are acts that change the context for
good, such as its local memory, and the driver is asked for clocks meanwhile.
"""

import ctypes
import json
import os
import random
import signal
import sys
import time
from functools import partial

import torch
import triton
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton import language as tl

os.environ.setdefault("CUDA_HOME", "/usr/local")  # NVRTC looks there for headers; it needs none
WIDTH, LAYERS, ROUNDS, CALLS, LIMIT = 4096, 12, 2, 10, 40  # the last: seconds of a process
PLAIN = "{ x[0] += 1; }"
SHARED = """{ extern __shared__ float kept[];
    kept[threadIdx.x] = x[0]; __syncthreads(); x[0] = kept[0] + 1; }"""
LOCAL = """{ float kept[512];
    for (int i = 0; i < 512; i++) kept[i] = x[0] + i;
    x[0] = kept[(int)x[0] & 511]; }"""


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


@triton.jit
def plus(x):
    tl.store(x, tl.load(x) + 1)


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


def clocks():
    """A function that asks NVML for the MHz of graphics, multiprocessors, memory and video."""
    nvml, handle, number = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_uint()
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
        raise RuntimeError("NVML knows nothing of this GPU")

    def read():
        found = []
        for which in range(4):
            nvml.nvmlDeviceGetClockInfo(handle, which, ctypes.byref(number))
            found.append(number.value)
        return found

    return read


def replays(graph, calls=CALLS, meanwhile=None):
    """ms of a replay on the GPU, and what the driver says meanwhile."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        graph.replay()
    end.record()
    said = meanwhile() if meanwhile else None
    torch.cuda.synchronize()
    return round(start.elapsed_time(end) / calls, 4), said


def often(work, times=30):
    for _ in range(times):
        work()


def libraries(one):
    """Kernels of libraries, each alone: how it is launched and what it needs of an SM differ."""
    half = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    square, row, bias = half(512, 512), half(1, WIDTH), half(512)
    matrix, wide = half(WIDTH, WIDTH), half(64, 512)
    q, k, v = half(1, 32, 1, 128), half(1, 32, 256, 128), half(1, 32, 256, 128)

    def attention(backend):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v)

    return {
        "cuDNN's attention": partial(attention, SDPBackend.CUDNN_ATTENTION),
        "flash attention": partial(attention, SDPBackend.FLASH_ATTENTION),
        "cuBLAS, a product": lambda: square @ square,
        "cuBLAS, matrix and vector": lambda: F.linear(row, matrix),
        "cuBLAS, 100 of those": lambda: often(lambda: F.linear(row, matrix), 100),
        "cuBLASLt, a product and a bias": lambda: F.linear(wide, square, bias),
        "a small kernel": lambda: one.add_(1),
        "a small kernel, 20,000 times": lambda: often(lambda: one.add_(1), 20_000),
        "a count of 1,000 cycles": lambda: torch.cuda._sleep(1000),
        "a count of 1,000,000 cycles": lambda: torch.cuda._sleep(1_000_000),
    }


def by_triton(one):
    side = torch.cuda.Stream()

    def aside():
        with torch.cuda.stream(side):
            plus[(1,)](one)

    return {
        "a Triton kernel": lambda: plus[(1,)](one),
        "a Triton kernel, 1,000 times": lambda: often(lambda: plus[(1,)](one), 1000),
        "a Triton kernel, other stream": aside,
        "a Triton kernel, early launch": lambda: plus[(1,)](one, launch_pdl=True),
    }


def built(body):
    """A kernel that the driver's own functions load and launch, as Triton's are."""
    return torch.cuda._compile_kernel('extern "C" __global__ void f(float *x) ' + body, "f")


def by_nvrtc(one):
    plain, shared, much = built(PLAIN), built(SHARED), 100 * 1024
    shared.set_shared_memory_config(much)
    return {
        "a kernel by NVRTC": lambda: plain(args=[one]),
        "a kernel by NVRTC, 100 KiB shared": lambda: shared(args=[one], shared_mem=much),
    }


def settings(one):
    """What a process can set in its context, and copies."""
    driver, context, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_size_t()
    pinned, here = torch.ones(2**24, pin_memory=True), torch.ones(2**24, device="cuda")
    there = torch.empty_like(here)
    local = built(LOCAL)
    driver.cuCtxGetCurrent(ctypes.byref(context))
    driver.cuCtxGetLimit(ctypes.byref(size), 0)

    def preferring(which):
        driver.cuCtxSetCacheConfig(which)
        one.add_(1)
        driver.cuCtxSetCacheConfig(0)

    def switched():
        driver.cuCtxSetCurrent(None)
        driver.cuCtxSetCurrent(context)

    def stack():
        driver.cuCtxSetLimit(0, ctypes.c_size_t(4 * size.value))
        driver.cuCtxSetLimit(0, size)

    return {
        "a kernel by NVRTC, local memory": lambda: local(args=[one]),
        "torch.cuda.set_device": lambda: torch.cuda.set_device(0),
        "the context set anew": switched,
        "another stack limit": stack,
        "L2's lines reset": driver.cuCtxResetPersistingL2Cache,
        "a small kernel, more shared memory": lambda: preferring(1),
        "a small kernel, more L1": lambda: preferring(2),
        "a copy from pinned memory": lambda: here.copy_(pinned, non_blocking=True),
        "a copy to pinned memory": lambda: pinned.copy_(here, non_blocking=True),
        "`item()`": one.item,
        "a copy on the GPU": lambda: there.copy_(here),
    }


def tried(make, *arguments):
    """Acts, or what stopped them from being made."""
    try:
        return make(*arguments), None
    except Exception as error:
        return {}, f"{make.__name__}: {type(error).__name__}: {error}"[:200]


@torch.no_grad()
def main():
    signal.alarm(70)  # at the latest, the process ends
    begin, seed, kind, reading = time.perf_counter(), *sys.argv[1:4]
    torch.manual_seed(0)
    with torch.device("cuda"):
        layers = nn.Sequential(*(Layer() for _ in range(LAYERS))).bfloat16()
        x, one, cell = torch.randn(1, WIDTH).bfloat16(), torch.zeros(1), torch.zeros(1)

    def step():
        return layers(x)

    acts, failed, fast = {"nothing": lambda: None, "an eager step": step}, {}, None
    acts["30 eager steps"] = partial(often, step)
    if kind == "compiled":
        fast, pointwise = torch.compile(step), torch.compile(lambda: cell.mul(2).add(1).tanh())
        often(fast, 5), pointwise()
        again = capture(fast)
        acts |= {"a compiled step": fast, "30 compiled steps": partial(often, fast)}
        acts |= {
            "a compiled function of one kernel": pointwise,
            "a compiled step's graph": again.replay,
        }
    for make in (libraries, by_triton, by_nvrtc, settings)[: 4 if reading == "more" else 3]:
        made, failed[make.__name__] = tried(make, one)
        acts |= made
    for name, act in [*acts.items()]:  # load each kernel before anything is timed
        try:
            act()
            torch.cuda.synchronize()
        except Exception as error:
            del acts[name]
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    graph, small = capture(step), capture(lambda: [cell.add_(1) for _ in range(1000)])
    meanwhile, rng, turns = clocks() if reading == "more" else None, random.Random(int(seed)), []
    ready = round(time.perf_counter() - begin, 1)
    replays(graph, 200)
    all_of_them = [(act, speed) for act in acts for speed in ("slow", "fast")[: 2 if fast else 1]]
    try:
        for _ in range(ROUNDS if fast else 2 * ROUNDS):
            for act, speed in rng.sample(all_of_them, len(all_of_them)):
                if time.perf_counter() - begin > LIMIT:
                    break
                torch.cuda._sleep(1_000_000)
                if speed == "fast":
                    often(fast)
                before, _ = replays(graph)
                acts[act]()
                after, said = replays(graph, CALLS, meanwhile)
                turns.append(
                    [act, speed, before, after, replays(graph)[0], replays(small, 1)[0], said]
                )
    except Exception as error:
        failed["last"] = f"{act}: {type(error).__name__}: {error}"[:200]
    failed = {name: error for name, error in failed.items() if error}
    print(json.dumps({"kind": kind, "built": ready, "failed": failed, "turns": turns}))


if __name__ == "__main__":
    main()
