"""Chapter 7.3's decoder and server: train.py's model with a static cache of keys and values."""

import copy
import os
import random
import statistics
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

BOOK = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BOOK / "keep"))
import train  # noqa: E402
from captured import captured  # noqa: E402

TUNED = {"coordinate_descent_tuning": True}  # a product of one row becomes a sum in Triton

# --- decoding -------------------------------------------------------------------------------------


def trained(device, file=BOOK / "records" / "language_model.pt"):
    """The model of chapter 7.2: 4 layers of width 256, trained on Python source, byte by byte."""
    net = train.Transformer(4, 256, 1024)
    net.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
    return net.to(device).eval().requires_grad_(False)


class Decoder:
    """A Transformer that remembers: logits of new tokens, from keys and values of those before.

    The cache is one tensor of a fixed size, (layers, keys or values, slots, places, heads, numbers
    of a head). A slot holds one sequence. `layer` is `with_cache` or a compiled one.
    """

    def __init__(self, net, slots, length, layer=None):
        weight = net.head.weight
        shape = (len(net.blocks), 2, slots, length, weight.shape[1] // train.HEAD, train.HEAD)
        self.net, self.layer = net, layer or with_cache
        self.cache = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.numbers = torch.arange(length, device=weight.device)
        self.all = torch.arange(slots, device=weight.device)[:, None]

    @torch.no_grad()
    def __call__(self, tokens, places, slots=None):
        """Logits after each token: tokens and their places are (rows, new), slots (rows, 1) or all.

        The mask lets each token see the places up to its own, whatever else the cache holds.
        """
        x, slots = self.net.embedding(tokens), self.all if slots is None else slots
        turns = self.net.turns[:, places].unsqueeze(3)  # by place, the same for all heads
        visible = (self.numbers <= places[..., None]).unsqueeze(1)  # (rows, 1, new, length)
        for block, (keys, values) in zip(self.net.blocks, self.cache, strict=True):
            x = self.layer(block, x, turns, keys, values, slots, places, visible)
        return self.net.head(self.net.norm(x)).float()


def with_cache(block, x, turns, keys, values, slots, places, visible):
    """What a Block of train.py does, for new tokens: their keys and values join the cache.

    As many rows as slots are all slots, in their order: the cache is read where it lies.
    """
    y = block.before_attention(x)
    three = block.query, block.key, block.value
    q, k, v = (layer(y).unflatten(-1, (-1, train.HEAD)) for layer in three)
    q, k = (train.turned(F.rms_norm(t, t.shape[-1:]), turns) for t in (q, k))
    keys[slots, places], values[slots, places] = k, v
    if len(slots) < len(keys):
        keys, values = keys[slots[:, 0]], values[slots[:, 0]]
    q, k, v = (t.transpose(1, 2) for t in (q, keys, values))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    x = x + block.out(y.transpose(1, 2).flatten(-2))
    return x + block.down(F.relu(block.up(block.before_mlp(x))).square())


class EightBits(nn.Module):
    """A linear layer whose weights have eight bits each, and a scale for each output."""

    def __init__(self, linear, dtype):
        super().__init__()
        weight = linear.weight.float()
        scale = weight.abs().amax(1) / (127 if dtype == torch.int8 else torch.finfo(dtype).max)
        weight = weight / scale[:, None]
        small = weight.round().to(dtype) if dtype == torch.int8 else weight.to(dtype)
        self.register_buffer("weight", small)
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


def in_eight_bits(net, dtype):
    """A copy of a Transformer with the matrices of its blocks in int8 or float8."""
    net = copy.deepcopy(net)
    for block in net.blocks:
        for name in ("query", "key", "value", "out", "up", "down"):
            setattr(block, name, EightBits(getattr(block, name), dtype))
    return net


def halved(net):
    """The network in bfloat16, ready to be asked; but angles keep the digits of float32."""
    turns = net.turns
    net = net.bfloat16().eval().requires_grad_(False)
    net.turns = turns
    return net


def large(layers=12, width=4096, context=512, device="cuda"):
    """A network of train.py's class that nobody has trained: it says nothing, at the same speed."""
    with torch.device(device):
        return halved(train.Transformer(layers, width, context))


# --- the ladder -----------------------------------------------------------------------------------


def rungs(net, length, compiles):
    """Ways to find the token at the last place, at batch 1; and what is to be known of them.

    "apart" is how far the logits are from those without a cache, as a part of their norm; "first"
    the seconds of a first call. A way that this machine cannot go is told in "said".
    """
    device = net.head.weight.device
    tokens = torch.randint(256, (1, length), device=device)
    last = tokens[:, -1:], torch.full((1, 1), length - 1, device=device)
    decoder = Decoder(net, 1, length)
    decoder(tokens, torch.arange(length, device=device)[None])  # which fills its cache
    ways = {
        "no cache": (torch.no_grad()(lambda x: net(x)[:, -1:]), tokens[:, :]),
        "cache": (decoder, *last),
    }
    for name, dtype in {"compiled": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}.items():
        if compiles:
            layer = torch.compile(with_cache, options=compiles, fullgraph=True, dynamic=False)
            small = in_eight_bits(net, dtype) if dtype else net
            ways[name] = (Decoder(small, 1, length, layer), *last)
            ways[name][0].cache.copy_(decoder.cache)
    arms, found = {}, {"apart": {}, "first": {}, "said": {}}
    for name, (way, *inputs) in ways.items():
        try:
            start = time.perf_counter()
            logits = way(*inputs).clone()
            found["first"][name] = round(time.perf_counter() - start, 1)
            right = found.setdefault("logits", logits)
            found["apart"][name] = float(f"{(logits - right).norm() / right.norm():.3g}")
            graph = captured(way, *inputs)
            arms |= {name: partial(way, *inputs), f"{name}, graph": partial(graph, *inputs)}
        except Exception as error:  # of a compiler, for one of the ways
            found["said"][name] = f"{type(error).__name__}: {error}"[:300]
    del found["logits"]
    return arms, decoder, found


def batch_of(decoder, count):
    """A graph of the decoder's step for so many sequences, all of the same bytes."""
    cache = decoder.cache
    length, device = cache.shape[3], cache.device
    many = Decoder(decoder.net, count, length)
    many.cache.copy_(cache)
    tokens = torch.zeros(count, 1, dtype=torch.long, device=device)
    inputs = tokens, torch.full_like(tokens, length - 1)
    return partial(captured(many, *inputs), *inputs)


def kernels_of(step, calls=10):
    """Kernels of a step, the milliseconds in which the GPU works, and the longest of them."""
    kind = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kind.CPU, kind.CUDA], acc_events=True) as profiler:
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
    rows = [r for r in profiler.key_averages() if r.device_type == torch.autograd.DeviceType.CUDA]
    rows = sorted(rows, key=lambda row: -row.self_device_time_total)
    ms = [round(row.self_device_time_total / 1e3 / calls, 4) for row in rows]
    longest = [[r.key[:60], r.count / calls, t] for r, t in zip(rows, ms, strict=True)][:6]
    count, busy = sum(row.count for row in rows) / calls, round(sum(ms), 3)
    return {"kernels": count, "ms": busy, "longest": longest}


# --- many requests --------------------------------------------------------------------------------


@dataclass(eq=False)
class Request:
    """A prompt, and how many tokens shall follow; when it comes, and when its client gives up."""

    prompt: list[int]
    count: int
    arrives: float = 0.0
    leaves: float = float("inf")
    cancelled: bool = False
    answer: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of the answer's tokens


class Server:
    """Continuous batching: all slots advance by a token at once, and a free one is filled at once.

    A slot has places for `length` - 1 tokens: the last one is where free slots write. On a GPU both
    steps are graphs, so prompts are filled up to the same number of tokens.
    """

    def __init__(self, net, slots, length, prompt, continuous=True):
        self.decoder, self.length, self.continuous = Decoder(net, slots, length), length, continuous
        self.device = self.decoder.cache.device
        self.tokens = torch.zeros(slots, 1, dtype=torch.long)
        self.places = torch.full_like(self.tokens, length - 1)
        self.order = torch.arange(prompt, device=self.device)[None]
        now = self.tokens.to(self.device), self.places.to(self.device)
        self.decode = captured(self.chosen, *now)
        self.prefill = captured(self.chosen, self.order, self.order, now[0][:1])
        self.decoder.cache.zero_()
        self.free, self.running, self.queue = list(range(slots)), {}, deque()

    def chosen(self, *inputs):
        """The likeliest token after each of the inputs."""
        return self.decoder(*inputs).argmax(-1)

    def submit(self, request):
        """Put a request in the queue."""
        size = len(request.prompt)
        if not 1 <= size <= self.order.shape[1] or not 1 <= request.count <= self.length - size:
            raise ValueError(f"{size} tokens and {request.count} more do not fit into a slot")
        self.queue.append(request)

    def step(self):
        """Free the slots of cancelled requests, fill free ones, decode a token for each; if any."""
        for slot in [slot for slot, request in self.running.items() if request.cancelled]:
            self.release(slot)
        may_enter = self.continuous or not self.running
        while may_enter and self.queue and self.free:
            request = self.queue.popleft()
            if not request.cancelled:
                self.admit(request)
        if self.running:
            found = self.decode(self.tokens.to(self.device), self.places.to(self.device))
            found = found.flatten().tolist()  # which waits for the GPU
            for slot in list(self.running):
                self.tell(slot, found[slot])
        return bool(self.running)

    def admit(self, request):
        """Read a prompt into a free slot, and find its first token."""
        slot, size = self.free.pop(), len(request.prompt)
        filled = torch.tensor([request.prompt + [0] * (self.order.shape[1] - size)])
        row = torch.tensor([[slot]], device=self.device)
        self.running[slot] = request
        found = self.prefill(filled.to(self.device), self.order, row)
        self.tell(slot, found[0, size - 1].item())

    def tell(self, slot, token):
        """Give a token to its request, and make it the next input; or free the slot."""
        request = self.running[slot]
        request.answer.append(token)
        request.times.append(time.perf_counter())
        if len(request.answer) == request.count:
            return self.release(slot)
        self.tokens[slot] = token
        self.places[slot] = len(request.prompt) + len(request.answer) - 1

    def release(self, slot):
        """Free a slot; nothing of what it held is left."""
        del self.running[slot]
        self.decoder.cache[:, :, slot] = 0
        self.tokens[slot], self.places[slot] = 0, self.length - 1
        self.free.append(slot)


def serve(server, requests, clock=time.perf_counter):
    """Submit each request when it arrives, whether or not the server keeps up, until all are done.

    Returns what the clock said at the start.
    """
    coming, start = deque(sorted(requests, key=lambda r: r.arrives)), clock()
    while coming or server.queue or server.running:
        now = clock() - start
        while coming and coming[0].arrives <= now:
            server.submit(coming.popleft())
        for request in (*server.queue, *server.running.values()):
            request.cancelled = request.leaves <= now
        if not server.step():
            time.sleep(1e-4)
    return start


def arrivals(count, rate=float("inf"), seed=0):
    """Requests of 8 to 64 tokens that want 16 to 112 more, and come at random, `rate` a second."""
    chance, now, found = random.Random(seed), 0.0, []
    for _ in range(count):
        prompt = [chance.randrange(256) for _ in range(chance.randint(8, 64))]
        found.append(Request(prompt, chance.randint(16, 112), now))
        now += chance.expovariate(rate) if rate < float("inf") else 0.0
    return found


def told(requests, start):
    """Tokens per second until the last request comes, requests that then still wait for their first
    token, and percentiles of what clients waited for, in ms: a first token, and the next one.
    """
    end = start + requests[-1].arrives
    first = [r.times[0] - start - r.arrives for r in requests]
    gaps = [b - a for r in requests for a, b in zip(r.times, r.times[1:], strict=False)]
    found = {"tokens/s": sum(t <= end for r in requests for t in r.times) / (end - start)}
    found["waiting"] = sum(r.times[0] > end for r in requests)
    for name, values in {"first": first, "gap": gaps}.items():
        cuts = statistics.quantiles(values, n=100)
        found |= {f"{name}, p50": 1e3 * cuts[49], f"{name}, p99": 1e3 * cuts[98]}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


# --- export ---------------------------------------------------------------------------------------

FILES = {"weights": "weights.pt", "export": "export.pt2", "AOTInductor": "inductor.pt2"}
FILES |= {"ONNX": "model.onnx", "TorchScript": "model.ts"}
STARTS = {  # whole programs of fresh processes, up to the first answer
    "weights": """import sys; sys.path.insert(0, sys.argv[2]); import torch, train
net = train.Transformer(4, 256, 1024); net.load_state_dict(torch.load(sys.argv[1]))
net.eval()(torch.zeros(4, 128, dtype=torch.long))""",
    "AOTInductor": """import sys, torch
torch._inductor.aoti_load_package(sys.argv[1])(torch.zeros(4, 128, dtype=torch.long))""",
    "ONNX": """import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {session.get_inputs()[0].name: numpy.zeros((4, 128), "int64")})""",
}


def onnx_session(threads, path):
    """An ONNX file, to be called with a tensor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def tried(write, load, path, net, x):
    """Seconds to write and to load a form, its size, how far its logits are; and the form."""
    begin = time.perf_counter()
    write(path)
    between = time.perf_counter()
    call = load(path)
    row = {"write": between - begin, "load": time.perf_counter() - between}
    row |= {"MB": os.path.getsize(path) / 1e6, "apart": (call(x) - net(x)).abs().max().item()}
    return {key: float(f"{value:.4g}") for key, value in row.items()}, call


def started(folder, names):
    """Seconds of fresh processes, three of each form, by turns; none of one that fails."""
    found = {name: [] for name in STARTS if name in names}
    for _ in range(3):
        for name, taken in found.items():
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                STARTS[name],
                f"{folder}/{FILES[name]}",
            ]
            start = time.perf_counter()
            if not subprocess.run([*command, BOOK / "keep"], capture_output=True).returncode:
                taken.append(float(f"{time.perf_counter() - start:.4g}"))
    return found
