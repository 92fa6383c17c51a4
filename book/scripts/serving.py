"""Chapter 7.3's decoder and server: train.py's model with a static cache of keys and values.

python serving.py ladder   seconds of a token of a large network, by ways to decode, on a GPU
python serving.py load     what requests wait for, by how many come, on a GPU
python serving.py export   seconds to make each form of the trained model and to call it, on a CPU

Prints JSON. AOTInductor needs a C++ compiler; ONNX needs onnx, onnxscript and onnxruntime.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch.export import Dim
from torch.nn import functional as F

BOOK = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BOOK / "keep"))
import train  # noqa: E402
from captured import captured  # noqa: E402
from eight_bits import eight_bits  # noqa: E402

# --- decoding -------------------------------------------------------------------------------------


def trained(file=BOOK / "records" / "language_model.pt"):
    """The model of chapter 7.2: 4 layers of width 256, trained on Python source, byte by byte."""
    net = train.Transformer(4, 256, 1024)
    net.load_state_dict(torch.load(file, weights_only=True))
    return net.eval().requires_grad_(False)


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


def large(context):
    """Twelve layers of width 4,096 in bfloat16, untrained: what they say is void, their speed not.

    The angles of the positions keep the digits of float32.
    """
    with torch.device("cuda"):
        net = train.Transformer(12, 4096, context)
    turns = net.turns
    net = net.bfloat16().eval().requires_grad_(False)
    net.turns = turns
    return net


# --- the ladder -----------------------------------------------------------------------------------


def step_of(net, length, count=1, layer=None):
    """A step for the last place of so many sequences; keys and values before it are random."""
    decoder = Decoder(net, count, length, layer)
    decoder.cache.normal_(generator=torch.Generator(decoder.cache.device).manual_seed(0))
    return partial(decoder, torch.zeros_like(decoder.all), torch.full_like(decoder.all, length - 1))


def rungs(net, length, layer):
    """Steps of one sequence, the last two with a compiled `layer`, and of batches."""
    small = eight_bits(net, lambda net: 0.0, most=0)[0]
    text = torch.zeros(1, length, dtype=torch.long, device=net.head.weight.device)
    return {
        "no cache": partial(torch.no_grad()(net), text),
        "cache": step_of(net, length),
        "compiled": step_of(net, length, layer=layer),
        "int8": step_of(small, length, layer=layer),
    } | {f"batch {n}": step_of(net, length, n) for n in (8, 64, 256)}


def in_turns(arms, rounds):
    """Seconds of a call of each arm, from an idle GPU to an idle GPU; each round has its order.

    The first ten rounds warm up.
    """
    taken = {name: [] for name in arms}
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(10 + rounds):
        for name in random.sample(list(arms), len(arms)):
            wait()
            start = time.perf_counter()
            arms[name]()
            wait()
            taken[name].append(round(time.perf_counter() - start, 7))
    return {name: seconds[10:] for name, seconds in taken.items()}


def ladder():
    """Seconds of a step in each way, by turns."""
    tuned = {"coordinate_descent_tuning": True}  # a product of one row becomes a sum in Triton
    layer = torch.compile(with_cache, options=tuned, fullgraph=True, dynamic=False)
    steps = rungs(large(512), 512, layer)
    arms = {name: steps[name] for name in ("no cache", "cache")}
    for name, step in steps.items():
        arms[f"{name}, graph"] = partial(captured(step.func, *step.args), *step.args)
    return in_turns(arms, rounds=200)


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
        self.clock = time.perf_counter

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
        """Free the slots of cancelled requests, fill free ones, decode a token for each.

        Returns for how many.
        """
        for slot in [slot for slot, request in self.running.items() if request.cancelled]:
            self.release(slot)
        may_enter = self.continuous or not self.running
        while may_enter and self.queue and self.free:
            request = self.queue.popleft()
            if not request.cancelled:
                self.admit(request)
        busy = list(self.running)
        if busy:
            found = self.decode(self.tokens.to(self.device), self.places.to(self.device))
            found = found.flatten().tolist()  # which waits for the GPU
            for slot in busy:
                self.tell(slot, found[slot])
        return len(busy)

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
        request.times.append(self.clock())
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


def serve(server, requests, in_steps=False):
    """Submit each request when it arrives, whether or not the server keeps up, until all are done.

    Time is counted in seconds or in steps, from 0. Returns how many slots each step used.
    """
    coming, busy, start = deque(sorted(requests, key=lambda r: r.arrives)), [], time.perf_counter()
    server.clock = (lambda: len(busy)) if in_steps else (lambda: time.perf_counter() - start)
    while coming or server.queue or server.running:
        now = server.clock()
        while coming and coming[0].arrives <= now:
            server.submit(coming.popleft())
        for request in (*server.queue, *server.running.values()):
            request.cancelled = request.leaves <= now
        busy.append(server.step())
        if not busy[-1]:
            time.sleep(1e-4)
    return busy


def arrivals(count, rate=float("inf"), seed=0):
    """Requests of 8 to 64 tokens that want 16 to 112 more, at random: `rate` per second or step."""
    chance, now, found = random.Random(seed), 0.0, []
    for _ in range(count):
        prompt = [chance.randrange(256) for _ in range(chance.randint(8, 64))]
        found.append(Request(prompt, chance.randint(16, 112), now))
        now += chance.expovariate(rate) if rate < float("inf") else 0.0
    return found


def told(requests):
    """Tokens per unit of time until the last request comes, how many then still wait for a first
    token, and percentiles of what clients waited for: a first token, and the next one.
    """
    end = requests[-1].arrives
    first = [r.times[0] - r.arrives for r in requests]
    gaps = [b - a for r in requests for a, b in zip(r.times, r.times[1:], strict=False)]
    found = {"tokens": sum(t <= end for r in requests for t in r.times) / end}
    found["waiting"] = sum(r.times[0] > end for r in requests[:-1])
    for name, values in {"first": first, "gap": gaps}.items():
        cuts = statistics.quantiles(values, n=100)
        found |= {f"{name}, p50": cuts[49], f"{name}, p99": cuts[98]}
    return {name: round(value, 4) for name, value in found.items()}


def load(net=None, slots=32, length=192, prompt=64, seconds=4):
    """Seconds of backlogs, continuously and batch by batch, the first to warm up; some loads."""
    net, ways = net or large(length), {"continuous": True, "batch by batch": False}
    servers = {n: Server(net, slots, length, prompt, way) for n, way in ways.items()}
    found = {"seconds": {name: [] for name in ways}, "loads": {}}
    for turn in range(9):
        for name in random.sample(list(ways), 2):
            serve(servers[name], requests := arrivals(3 * slots, seed=turn))
            found["seconds"][name].append(max(r.times[-1] for r in requests))
    serve(servers["continuous"], requests := arrivals(12 * slots, seed=9))
    most = 12 * slots / max(r.times[-1] for r in requests)
    for share in (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25):  # of what it can do
        requests = arrivals(max(2, round(seconds * share * most)), share * most)
        serve(servers["continuous"], requests)
        found["loads"][share] = told(requests)
    return found | {"requests per second": most}


# --- export ---------------------------------------------------------------------------------------


def example(rows, length):
    """The same bytes, whenever it is called."""
    return torch.randint(256, (rows, length), generator=torch.Generator().manual_seed(0))


def forms(net):
    """How to write a model into a file of each form, and how to load it to be called."""
    x = (example(2, 64),)
    sizes = {"dynamic_shapes": {"x": {0: Dim("batch"), 1: Dim("time", max=1023)}}}
    program, inductor = torch.export.export(net, x, **sizes), torch._inductor
    onnx = partial(torch.onnx.export, net, x, dynamo=True, external_data=False, **sizes)
    return {
        "weights.pt": (lambda to: torch.save(net.state_dict(), to), trained),
        "export.pt2": (
            partial(torch.export.save, program),
            lambda p: torch.export.load(p).module(),
        ),
        "inductor.pt2": (
            lambda to: inductor.aoti_compile_and_package(program, package_path=to),
            inductor.aoti_load_package,
        ),
        "model.onnx": (onnx, onnx_session),
        "model.ts": (lambda to: torch.jit.trace(net, x).save(to), torch.jit.load),
    }


def onnx_session(path):
    """An ONNX file, to be called with a tensor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def export(threads=4):
    """What each form of the trained model costs to make and to call with 4 x 128 bytes, in seconds.

    And how many bytes a form has, and how far its logits are from the model's own.
    """
    torch.set_num_threads(threads)
    net, x, found, arms = trained(), example(4, 128), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (write, read) in forms(net).items():
            path, start = f"{folder}/{name}", time.perf_counter()
            try:
                write(path)
                arms[name] = partial(read(path), x)
            except (ImportError, RuntimeError) as error:  # a compiler or a package is missing
                found[name] = f"{type(error).__name__}: {error}"[:200]
                continue
            found[name] = {"made": time.perf_counter() - start, "bytes": Path(path).stat().st_size}
            found[name]["apart"] = (arms[name]() - net(x)).abs().max().item()
        return {"forms": found, "seconds": in_turns(arms, rounds=40)}


if __name__ == "__main__":
    works = {"ladder": ladder, "load": load, "export": export}
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=works)
    what = parser.parse_args().what
    if what != "export" and not torch.cuda.is_available():
        raise SystemExit(f"serving.py {what} measures a GPU, and there is none")
    print(json.dumps(works[what](), indent=1))
