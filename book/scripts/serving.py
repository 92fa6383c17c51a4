"""Chapter 7.3's decoder and server: train.py's model with a static cache of keys and values.

python serving.py ladder   seconds of a token of a large network, by ways to decode, on a GPU
python serving.py load     what requests wait for, by how many come, on a GPU
python serving.py export   size, answers and seconds of each form of the trained model, on a CPU

Prints JSON. AOTInductor needs a C++ compiler; ONNX needs onnx, onnxscript and onnxruntime. What is
missing is said, and the rest goes on.
"""

import argparse
import copy
import json
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import torch
from torch.export import Dim
from torch.nn import functional as F

BOOK = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(BOOK / "keep"), str(BOOK.parent)]
import train  # noqa: E402
from captured import captured  # noqa: E402
from eight_bits import eight_bits  # noqa: E402
from generate import generate  # noqa: E402

from utils.timing import digits, rounds_of  # noqa: E402

# --- decoding -------------------------------------------------------------------------------------


def trained(file=BOOK / "records" / "language_model.pt"):
    """The model of chapter 7.2: 4 layers of width 256, trained on Python source, byte by byte."""
    net = train.Transformer(4, 256, 1024)
    net.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
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
    """A step for the last place of so many sequences, of random tokens, keys and values."""
    decoder = Decoder(net, count, length, layer)
    decoder.cache.normal_(generator=torch.Generator(decoder.cache.device).manual_seed(0))
    tokens = example(count, 1).to(decoder.all.device)
    return partial(decoder, tokens, torch.full_like(tokens, length - 1))


def prompt_of(net, text, layer=None):
    """A step that reads a whole text into an empty cache."""
    decoder = Decoder(net, 1, text.shape[1], layer)
    return partial(decoder, text, decoder.numbers[None])


def loop_of(step, first, length, count=16):
    """`generate` around a step of one sequence: it writes the tokens of the last `count` places."""

    def model(tokens, start):
        at = length - count + start
        return step(tokens, torch.arange(at, at + 1, device=tokens.device)[None])

    return lambda: generate(model, first, count, cached=True)


def rungs(net, length, plain, tuned):
    """How to make the step of each rung, of one sequence or of a batch; with compiled layers.

    bf16 and int8 have the same options, and those worth most come first.
    """
    text = example(1, length).to(net.head.weight.device)
    small = cache(lambda: eight_bits(net, lambda net: 0.0, most=0)[0])
    makers = {
        "no cache": lambda: partial(torch.no_grad()(net), text),
        "cache": lambda: step_of(net, length),
    }
    for name, layer in {"prompt": None, "compiled, prompt": plain}.items():
        makers[name] = partial(prompt_of, net, text, layer)
    for batch, options in ((1, ""), (8, ""), (256, ""), (1, ", tuned"), (8, ", tuned")):
        layer, rows = tuned if options else plain, "" if batch == 1 else f", batch {batch}"
        makers[f"compiled{rows}{options}"] = partial(step_of, net, length, batch, layer)
        if batch < 256:  # whose caches are what it reads
            makers[f"int8{rows}{options}"] = lambda batch=batch, layer=layer: step_of(
                small(), length, batch, layer
            )
    return makers


def made(makers, most=float("inf")):
    """Steps and their graphs; what a first call took, how far logits are from those of "cache".

    Of one sequence, as a part of their norm. What fails is said; after `most` seconds none begins.
    """
    arms, found, right = {}, {"first": {}, "apart": {}, "said": {}}, None
    begin = time.perf_counter()
    for name, make in makers.items():
        start = time.perf_counter()
        try:
            assert start < begin + most, "no time was left for it"
            step = make()
            logits = step()[0, -1].clone()
            graph = partial(captured(step.func, *step.args), *step.args)
            graph()[0, -1].tolist()  # waits
        except Exception as error:  # of a compiler, or a package is missing
            found["said"][name] = f"{type(error).__name__}: {error}"[:300]
            continue
        found["first"][name] = round(time.perf_counter() - start, 1)
        right = logits if name == "cache" else right
        if right is not None and "batch" not in name and "prompt" not in name:
            found["apart"][name] = digits(((logits - right).norm() / right.norm()).item())
        arms |= {name: step} if name in ("no cache", "cache", "compiled") else {}  # eager
        arms[f"{name}, graph"] = graph
    return arms, found


def kernels_of(step, calls=10):
    """Kernels of a step; milliseconds in them, and from the first one's start to the last's end."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], acc_events=True) as profiler:
        for _ in range(calls):
            step()
            torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA
    return said_of([event for event in profiler.events() if event.device_type == kind], calls)


def said_of(events, calls):
    """What kernels_of says of the events of so many calls, in which each has as many."""
    events = sorted(events, key=lambda event: event.time_range.start)
    many, of_name = len(events) // calls, {}
    for event in events:
        of_name.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e3)
    steps = [events[i : i + many] for i in range(0, many * calls, many)] if many else []
    spans = [(s[-1].time_range.end - s[0].time_range.start) / 1e3 for s in steps]
    longest = sorted(of_name.items(), key=lambda item: -sum(item[1]))[:8]
    return {
        "kernels": len(events) / calls,
        "ms": digits(sum(map(sum, of_name.values())) / calls),
        "span": digits(statistics.median(spans or [0.0])),
        "longest": [[n[:90], len(ms) / calls, digits(sum(ms) / calls)] for n, ms in longest],
    }


def ladder(rounds=100, most=60):
    """Seconds of a step in each way, by turns; the kernels of the graphs; and of reading alone."""
    net, layer = large(512), partial(torch.compile, with_cache, fullgraph=True, dynamic=False)
    # the option makes a sum in Triton of a product with one row
    makers = rungs(net, 512, layer(), layer(options={"coordinate_descent_tuning": True}))
    with torch._dynamo.config.patch(recompile_limit=32):
        arms, found = made(makers, most)
        bytes_read = sum(p.nbytes for p in net.parameters()) - net.embedding.weight.nbytes
        numbers = torch.empty(bytes_read // 4, device="cuda").normal_()
        found["bytes"] = numbers.nbytes
        arms |= {"reading": numbers.sum}
        for name in ("cache", "compiled, tuned", "int8, tuned"):
            if replay := arms.get(f"{name}, graph"):
                arms[f"{name}, graph, generate"] = loop_of(replay.func, replay.args[0], 512)
        found["seconds"] = rounds_of(arms, rounds, warmup_seconds=0.3)
        for name, taken in found["seconds"].items():
            if name.endswith("generate"):  # 16 tokens
                found["seconds"][name] = [digits(seconds / 16) for seconds in taken]
        found["kernels"] = {}
        for name in filter(lambda name: name.endswith("graph"), arms):
            try:
                found["kernels"][name] = kernels_of(arms[name])
            except Exception as error:  # of the profiler: the seconds are worth keeping
                found["said"][f"kernels, {name}"] = f"{type(error).__name__}: {error}"[:300]
    return found


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


def likeliest(decoder, *inputs):
    """The likeliest token after each of the inputs."""
    return decoder(*inputs).argmax(-1)


class Server:
    """Continuous batching: all slots advance by a token at once, and a free one is filled at once.

    A slot has places for `length` - 1 tokens: the last one is where free slots write. On a GPU all
    steps are graphs: prompts are filled up to the same number of tokens, and those that come in
    together are read together, in as few graphs as add up to them. `layer` is for decoding alone.
    """

    def __init__(self, net, slots, length, prompt, continuous=True, layer=None):
        self.decoder, self.length, self.continuous = Decoder(net, slots, length), length, continuous
        self.device = self.decoder.cache.device
        self.tokens = torch.zeros(slots, 1, dtype=torch.long)
        self.places = torch.full_like(self.tokens, length - 1)
        self.order = torch.arange(prompt, device=self.device)[None]
        one = copy.copy(self.decoder)  # with the same cache
        one.layer = layer or with_cache
        now = self.tokens.to(self.device), self.places.to(self.device)
        graph = captured if self.device.type == "cuda" else lambda step, *_: step
        self.decode = graph(partial(likeliest, one), *now)
        self.sizes, graphs = [n for n in range(slots, 0, -1) if n == slots or not n & (n - 1)], {}
        for n in self.sizes:
            rows = self.order.repeat(n, 1)
            example = rows, rows, self.decoder.all[:n]
            graphs[n] = graph(partial(likeliest, self.decoder), *example)
        self.prefill = lambda tokens, *where: graphs[len(tokens)](tokens, *where)
        self.decoder.cache.zero_()
        self.free, self.running, self.queue = list(range(slots)), {}, deque()
        self.clock = time.perf_counter

    def submit(self, request):
        """Put a request in the queue."""
        size = len(request.prompt)
        if not 1 <= size <= self.order.shape[1] or not 1 <= request.count <= self.length - size:
            raise ValueError(f"{size} tokens and {request.count} more do not fit into a slot")
        last = self.decoder.net.embedding.num_embeddings - 1
        if min(request.prompt) < 0 or max(request.prompt) > last:
            raise ValueError(f"this network's tokens are 0 to {last}, and the prompt has others")
        self.queue.append(request)

    def step(self):
        """Free the slots of cancelled requests, fill free ones, decode a token for each.

        Returns for how many.
        """
        for slot in [slot for slot, request in self.running.items() if request.cancelled]:
            self.release(slot)
        if self.continuous or not self.running:
            waiting = [r for r in self.queue if not r.cancelled]
            enter = waiting[: len(self.free)]
            self.queue = deque(waiting[len(enter) :])
            while enter:
                n = next(n for n in self.sizes if n <= len(enter))
                self.admit(enter[:n])
                enter = enter[n:]
        busy = list(self.running)
        if busy:
            found = self.decode(self.tokens.to(self.device), self.places.to(self.device))
            found = found.flatten().tolist()  # which waits for the GPU
            for slot in busy:
                self.tell(slot, found[slot])
        return len(busy)

    def admit(self, requests):
        """Read prompts into free slots, and find their first tokens."""
        slots = sorted(self.free.pop() for _ in requests)
        filled = torch.zeros(len(requests), self.order.shape[1], dtype=torch.long)
        for row, request in zip(filled, requests, strict=True):
            row[: len(request.prompt)] = torch.tensor(request.prompt)
        rows = torch.tensor(slots, device=self.device)[:, None]
        places = self.order.expand(len(rows), -1)
        found = self.prefill(filled.to(self.device), places, rows).tolist()
        self.running |= dict(zip(slots, requests, strict=True))
        for slot, request, tokens in zip(slots, requests, found, strict=True):
            self.tell(slot, tokens[len(request.prompt) - 1])

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


LOADS = {  # seconds of a draw, by shares of the requests per second that the first can answer
    "continuous": {0.5: 30, 0.75: 30, 0.9: 30, 1.1: 8},
    "batch by batch": {0.5: 10},
    "compiled": {1.1: 8},
}


def load(net=None, slots=32, length=192, prompt=64, most=300, rounds=8):
    """Seconds of a step and of reading prompts, and of backlogs, by ways; then of loads, by chance.

    All ways read prompts alike; only the scheduling or, compiled, the step is another. Of "int8",
    compiled too, there is the step alone. Of each load the waits for a first token are kept, in ms.
    What fails is said; no load begins that would end after `most` seconds.
    """
    begin, net, servers, said = time.perf_counter(), net or large(length), {}, {}
    torch._dynamo.reset()  # what the ladder compiled of this function counts against the limit
    layer = torch.compile(with_cache, fullgraph=True, dynamic=False)
    options = {"continuous": (True,), "batch by batch": (False,), "compiled": (True, layer)}
    for name, some in (options | {"int8": options["compiled"]}).items():
        try:
            of = eight_bits(net, lambda net: 0.0, most=0)[0] if name == "int8" else net
            servers[name] = Server(of, slots, length, prompt, *some)
            serve(servers[name], arrivals(3 * slots))  # warms up
        except Exception as error:  # of a compiler
            said[name] = f"{type(error).__name__}: {error}"[:300]
            servers.pop(name, None)
    server = servers["continuous"]
    now = example(slots, 1).to(server.device), server.places.to(server.device)
    parts = {f"step, {n}": partial(s.decode, *now) for n, s in servers.items() if s.continuous}
    for n in (1, slots):
        where = server.order.repeat(n, 1), server.decoder.all[:n]
        parts[f"prompts, {n}"] = partial(server.prefill, example(n, prompt).to(where[0]), *where)
    servers.pop("int8", None)
    found = {"said": said, "parts": rounds_of(parts, 40, warmup_seconds=0.2)}
    found |= {"seconds": {n: [] for n in servers}, "loads": {n: {} for n in servers}}
    for seed in range(1, 1 + rounds):
        for name in random.sample(list(servers), len(servers)):
            serve(servers[name], requests := arrivals(3 * slots, seed=seed))
            found["seconds"][name].append(digits(max(r.times[-1] for r in requests)))
    serve(server, requests := arrivals(10 * slots, seed=20))
    rate = 10 * slots / max(r.times[-1] for r in requests)
    points = [(name, *point) for name in servers for point in LOADS[name].items()]
    for seed in (30, 31):
        for name, share, seconds in random.sample(points, len(points)):
            if time.perf_counter() + 1.1 * seconds > begin + most:
                said[f"{name}, {share:.0%}, {seed}"] = "no time was left for it"
                continue
            requests = arrivals(max(2, round(seconds * share * rate)), share * rate, seed)
            serve(servers[name], requests)
            waits = [round(1e3 * (r.times[0] - r.arrives)) for r in requests]
            run = told(requests) | {"seed": seed, "waits": waits}
            found["loads"][name].setdefault(f"{share:.0%}", []).append(run)
    return found | {"requests per second": digits(rate)}


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


def export(rounds=40):
    """Bytes of each form, and how far its logits for 5 x 100 bytes are from the model's own.

    And the seconds of so many calls, by turns. What fails is said: a package may be missing.
    """
    net, x, arms = trained(), example(5, 100), {}
    found = {"forms": {}, "said": {}}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name, (write, read) in forms(net).items():
            path = Path(folder, name)
            try:
                write(str(path))
                call = read(str(path))
                apart = (call(x) - net(x)).abs().max().item()
            except Exception as error:
                found["said"][name] = f"{type(error).__name__}: {error}"[:300]
                continue
            found["forms"][name] = {"bytes": path.stat().st_size, "apart": digits(apart)}
            arms[name] = partial(call, x)
        if rounds:
            found["seconds"] = rounds_of(arms, rounds, warmup_seconds=0.5)
    return found


if __name__ == "__main__":
    works = {"ladder": ladder, "load": load, "export": export}
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=works)
    what = parser.parse_args().what
    if what != "export" and not torch.cuda.is_available():
        raise SystemExit(f"serving.py {what} measures a GPU, and there is none")
    print(json.dumps(works[what](), indent=1))
