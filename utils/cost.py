"""What a step takes in memory and time, on one GPU and many: formulas, nothing measured.

Sizes are in bytes, times in seconds, speeds in FLOP/s and bytes/s. Communication is a latency and
bytes over bandwidth (chapter 5.1 fits both). Nothing knows of the host: where launching a step
takes longer than computing it, a step takes longer than it says here (chapter 5.3).

    network = Network(parameters=70e9, layers=80, width=8192, context=8192)
    cluster = Cluster(flops=0.5 * 989e12, inside=350e9, between=50e9)
    step(network, cluster, Plan(data=64, tensor=8, shard=True), tokens=4 * 2**20)["step"]
"""

import math
from dataclasses import dataclass

# Bytes of a number: one that travels, in bfloat16; one in NF4, its scales quantized, too (4.127
# bits: arXiv 2305.14314); AdamW's two averages in 8 bits, with a float32 for each 256.
HALF, FOUR_BITS, EIGHT_BITS = 2, 4.127 / 8, 2 * (1 + 4 / 256)
GIB = 2**30


@dataclass(frozen=True)
class Network:
    """A dense transformer: parameters, layers, width of the residual stream, tokens of context."""

    parameters: float
    layers: int
    width: int
    context: int
    recompute: bool = False  # activations are computed again in the backward pass

    @property
    def flops(self) -> float:
        """FLOP of a trained token: 6 per parameter, and 12 for each pair of layer, width, context.

        As papers count: attention whole, though half is masked (arXiv 2204.02311, appendix B).
        """
        once = 6 * self.parameters + 12 * self.layers * self.width * self.context
        return once * (4 / 3 if self.recompute else 1)


@dataclass(frozen=True)
class Cluster:
    """Equal GPUs in equal machines.

    ``flops`` is what one GPU reaches on this network alone, not its peak: measure it. ``inside`` is
    a group's bus bandwidth within a machine, ``between`` what a GPU's own network card carries.
    """

    flops: float
    inside: float
    between: float
    latency: float = 40e-6
    per_machine: int = 8


@dataclass(frozen=True)
class Plan:
    """How a step is spread: copies of the model, ranks of a split layer, stages of a pipeline.

    ``parts`` are the stages that each rank of the pipeline has (interleaved if more than one);
    ``shard`` is FSDP2 in place of DDP.
    """

    data: int = 1
    tensor: int = 1
    stages: int = 1
    microbatches: int = 1
    parts: int = 1
    shard: bool = False

    @property
    def gpus(self) -> int:
        """How many GPUs that takes."""
        return self.data * self.tensor * self.stages


def all_reduce(size: float, ranks: int, bandwidth: float, latency: float = 40e-6) -> float:
    """Seconds of an all-reduce of ``size`` bytes; an all-gather or reduce-scatter takes half.

    A ring: each rank sends 2 (n - 1) / n of the bytes (Patarasuk and Yuan, 2009).
    """
    return latency + 2 * (ranks - 1) / ranks * size / bandwidth if ranks > 1 else 0.0


def bubble(stages: int, microbatches: int, parts: int = 1) -> float:
    """Idle time of a pipeline over its work: GPipe, 1F1B, interleaved (arXiv 2104.04473)."""
    return (stages - 1) / (parts * microbatches)


def exposed(traffic: float, cover: float, last: float = 0.0) -> float:
    """What is left to wait for: the last message, or what exceeds the work that it hides behind."""
    return max(last, traffic - cover)


def step(network: Network, cluster: Cluster, plan: Plan, tokens: float) -> dict[str, float]:
    """Seconds of a step of ``tokens``, by cause; ``"step"`` is their sum."""
    compute = network.flops * tokens / (plan.gpus * cluster.flops)
    pieces, wait = plan.microbatches, cluster.latency
    rows = HALF * network.width * tokens / plan.data / pieces  # of a microbatch, between layers
    # Two all-reduces forward, two backward (arXiv 1909.08053); two more if forward is repeated.
    sums = (6 if network.recompute else 4) * network.layers / plan.stages * pieces
    split = sums * all_reduce(rows, plan.tensor, cluster.inside, wait)
    hops = 2 * plan.parts * pieces if plan.stages > 1 else 0
    sent = hops * (wait + rows / plan.tensor / cluster.between)
    weights = HALF * network.parameters / plan.tensor / plan.stages
    cards = max(1, cluster.per_machine / plan.tensor)  # of a group in a machine: a ring for each
    link = min(cluster.inside, cards * cluster.between) if plan.data > cards else cluster.inside
    once = all_reduce(weights, plan.data, link, wait)
    if plan.shard:  # each microbatch, two gathers and a reduce-scatter: behind all of the work
        left = exposed(1.5 * pieces * once, compute, once / network.layers)
    else:  # behind the backward pass of the last microbatch
        left = exposed(once, compute * 2 / 3 / pieces, once / network.layers)
    idle = compute * bubble(plan.stages, pieces, plan.parts)
    found = {"compute": compute, "bubble": idle, "tensor": split, "pipeline": sent, "data": left}
    return {**found, "step": sum(found.values())}


def memory(network: Network, plan: Plan, each: float = 16) -> float:
    """Bytes of parameters, gradients and Adam's states on a GPU; ``each`` for a parameter."""
    return each * network.parameters / plan.tensor / plan.stages / (plan.data if plan.shard else 1)


def save_every(save: float, mtbf: float) -> float:
    """The interval between checkpoints that loses least while failures are rare (Young, 1974).

    ``save`` is how long training stands still for one, ``mtbf`` the mean time between failures of
    the whole job.
    """
    return math.sqrt(2 * save * mtbf)


def lost(interval: float, save: float, restart: float, mtbf: float) -> float:
    """The part of the time lost to saving, to work done twice, and to starting again.

    Failures come at random, also while saving and starting (Daly, 2006).
    """
    whole = mtbf * math.exp(restart / mtbf) * math.expm1((interval + save) / mtbf)
    return 1 - interval / whole


# --- what calculators compute: tools/explore.py makes JavaScript of it -------------------
# So these say only what both languages do alike: settings and results are dictionaries.


def sizes(s: dict) -> dict:
    """Parameters of a decoder: all, a block's matrices, its adapters of rank 1, the embedding."""
    width, kv = s["width"], s["width"] / s["heads"] * s["kv"]
    products = 3 if s["gated"] else 2
    matrices = width * (2 * width + 2 * kv) + products * width * s["hidden"]
    small = 2 * width if s["gated"] else 8 * width + 2 * kv - width + s["hidden"]
    table = s["vocabulary"] * width
    rest = width if s["gated"] else (2 + s["length"]) * width  # last norm, learned positions
    every = s["layers"] * (matrices + small) + (1 if s["tied"] else 2) * table + rest
    adapters = 4 * width + 2 * (width + kv) + products * (width + s["hidden"])
    return {"all": every, "matrices": matrices, "adapters": adapters, "table": table, "kv": kv}


def training_bytes(s: dict) -> dict:
    """Bytes of a training step on each GPU, by part, when it needs most (chapter 2.4).

    LoRA has a base in 16 bits, or 4, and adapters in float32 beside every matrix of the blocks.
    """
    n = sizes(s)
    full = s["method"] == "full"
    wide = full and s["precision"] == "float32"
    pure = s["precision"] == "bfloat16" or not full
    share, tensor, width, kind = s["shard"] * s["tensor"], s["tensor"], s["width"], s["optimizer"]
    each = 2 if pure else 4  # bytes of a weight
    number = 4 if wide else 2  # and of what products take
    blocks = s["layers"] * n["matrices"]
    saved = blocks * (2 - FOUR_BITS) if s["method"] == "4-bit LoRA" else 0
    adapters = 0 if full else s["rank"] * s["layers"] * n["adapters"]
    trained, of_each = (n["all"], each) if full else (adapters, 4)
    weights = (each * n["all"] - saved + 4 * adapters) / share
    averages = 2 * of_each if kind in ("AdamW", "AdamW fused") else 0
    averages = of_each if kind == "SGD momentum" else averages
    averages = EIGHT_BITS if kind == "AdamW 8-bit" else averages
    state = 0 if s["host"] else averages * trained / share
    gradients = 0 if s["early"] else of_each * trained / share
    together = min(s["together"], s["batch"])  # sequences in one pass: fewer, and they accumulate
    tokens = together * s["length"]
    inside = (2 * width + 2 * n["kv"] + (4 if s["gated"] else 2) * s["hidden"]) / tensor
    norms = 2 * (each + number) * width
    block = tokens * (norms + number * inside + 4 * s["heads"] / tensor + 16)
    stream = tokens * width * each
    activations = s["layers"] * (stream if s["checkpoint"] else block) + stream
    rows = min(s["slice"], tokens) if s["slice"] > 0 else tokens
    # In 16 bits, log-softmax and its gradient are float32 all the same: 4 and 4 beside 2 bytes.
    sets = (12 if wide else 10) + (number if s["named"] and s["slice"] == 0 else 0)
    sliced = stream + (number * n["table"] if full else 0)
    loss = rows * s["vocabulary"] * sets + (sliced if s["slice"] > 0 else 0)
    # Gradients within the last block, whose backward pass comes first.
    flow = tokens * number * (3 if s["gated"] else 2) * s["hidden"] / tensor + stream
    inner = (block if s["checkpoint"] else 0) + flow
    cast = 0 if wide or pure else 2 * (n["table"] + (0 if s["checkpoint"] else blocks)) / share
    tables = (1 if s["tied"] else 2) * n["table"]
    gathered = (2 * n["matrices"] + tables) * number / tensor if s["shard"] > 1 else 0
    # Gradients at the end: of a tied embedding, two and their sum, of which one is counted above.
    meeting = n["table"] * (2 if s["tied"] else 0) + n["table"] * (1 if s["early"] else 0)
    late = max(block, meeting * each / share if full else 0)
    roots = of_each * trained / share if kind == "AdamW" and not s["early"] else 0
    there = gradients if together < s["batch"] else 0
    first = there + activations + max(loss, inner) + cast + gathered
    second, third = gradients + late + gathered, gradients + roots
    top = max(first, second, third)
    is_first, is_second = first >= top, second >= top and first < top
    return {
        "weights": weights,
        "gradients": there if is_first else gradients,
        "optimizer": state,
        "activations": activations + max(inner - loss, 0) if is_first else 0,
        "loss": loss if is_first else 0,
        "temporary": cast + gathered if is_first else late + gathered if is_second else roots,
    }


def serving_bytes(s: dict) -> dict:
    """Bytes of generating text on each GPU in 16 bits: weights, keys and values, a block's work.

    The last is of a prompt as long as the context, all sequences at once.
    """
    n, number = sizes(s), 2
    each = 1 if s["weights"] == "8 bits" else FOUR_BITS if s["weights"] == "4 bits" else number
    blocks, share = s["layers"] * n["matrices"], s["shard"] * s["tensor"]
    tokens = s["batch"] * s["length"]
    work = tokens * (4 * s["width"] + 2 * s["hidden"]) * number / s["tensor"]
    return {
        "weights": (number * (n["all"] - blocks) + each * blocks) / share,
        "cache": 2 * s["layers"] * n["kv"] * tokens * number / s["tensor"],
        "temporary": work + 4 * s["batch"] * s["vocabulary"],
    }


def wrong(s: dict) -> str:
    """What is wrong with settings, in a sentence; nothing if nothing is."""
    if s["width"] % s["heads"] > 0:
        return "Heads must divide the width: each head has width / heads numbers."
    if s["heads"] % s["kv"] > 0:
        return "Heads of keys must divide the heads: each is shared by equally many."
    if s["kv"] % s["tensor"] > 0:
        return "Tensor parallelism splits the heads: its GPUs must divide the heads of keys."
    if s["task"] == "training" and s["early"] and s["together"] < s["batch"]:
        return "Stepping in the backward pass rules out accumulation: gradients are gone by then."
    return ""


def fit(s: dict) -> dict:
    """What a GPU has to hold, and what PyTorch's cache comes to: ``peak``, ``held``, in bytes.

    ``card`` is in GiB, ``context`` what a process takes besides, in bytes.
    """
    parts = serving_bytes(s) if s["task"] == "serving" else training_bytes(s)
    peak = sum(parts.values())
    held = peak * s["cached"] + s["context"]
    card = s["card"] * GIB
    says = "fits" if held <= card else "is tight" if peak + s["context"] <= card else "does not fit"
    return {"parts": parts, "peak": peak, "held": held, "says": says, "all": sizes(s)["all"]}


def switched(s: dict, remedies: list, out: list) -> dict:
    """The settings with all remedies switched on that ``out`` does not name."""
    for r in remedies:
        s = s if r["name"] in out else {**s, **r["set"]}
    return s


def advice(s: dict, remedies: list) -> dict:
    """Which remedies make it fit, cheapest first as they are listed, none that is not needed."""
    chosen, backward, out = [], [], []
    for r in remedies:
        now, then = switched(s, chosen, []), switched(s, [*chosen, r], [])
        is_better = wrong(then) == "" and fit(then)["held"] <= fit(now)["held"]
        if is_better and fit(now)["says"] != "fits":
            chosen.append(r)
            backward = [r, *backward]
    for r in backward:  # the most expensive first
        if fit(switched(s, chosen, [*out, r["name"]]))["says"] == "fits":
            out.append(r["name"])
    found = fit(switched(s, chosen, out))
    return {"out": out, "chosen": chosen, "says": found["says"], "held": found["held"]}


def counted(said: dict, peak: float, bandwidth: float) -> dict:
    """The four numbers of a step, from what ``python -m utils.bounds --json`` says of a profile.

    TFLOP and GB are what kernels at a roof have of ``peak`` [TFLOP/s] and ``bandwidth`` [GB/s].
    """
    seen, shares, ms = said["evidence"], said["shares"], said["evidence"]["wall"] / 1e3
    return {
        "tflop": seen["of_peak"] * shares["arithmetic"] * ms * peak / 1e3,
        "gigabytes": seen["of_bandwidth"] * shares["memory"] * ms * bandwidth / 1e3,
        "launches": seen["kernels"],
        "waiting": (shares["data"] + shares["other GPUs"]) * ms,
        "step": ms,
    }


def binds(s: dict) -> dict:
    """Milliseconds of a step by what it waits for, and the bound; "unclear" below half of them."""
    arithmetic = 1e3 * s["tflop"] / s["peak"]
    memory = 1e3 * s["gigabytes"] / s["bandwidth"]
    python = s["launches"] * s["launch"] / 1e3
    waiting = s["waiting"]
    most = max(arithmetic, memory, python, waiting)
    bound = "waiting" if waiting >= most else "python" if python >= most else "memory"
    bound = "arithmetic" if arithmetic >= most else bound
    bound = "unclear" if most < (arithmetic + memory + python + waiting) / 2 else bound
    is_far = s["step"] - waiting - python > 5 * most  # by chapter 6.2's rule, near neither roof
    bound = "neither roof" if is_far and most in (arithmetic, memory) else bound
    times = {"arithmetic": arithmetic, "memory": memory, "python": python, "waiting": waiting}
    return {"ms": times, "least": max(arithmetic, memory, python) + waiting, "bound": bound}


def crowd(s: dict, gpus: float) -> dict:
    """A step on so many GPUs: seconds, the part that computes, bytes on each (chapter 5.5).

    Settings are in 10**9 parameters, TFLOP/s, GB/s and µs.
    """
    network = Network(s["parameters"] * 1e9, s["layers"], s["width"], s["context"], s["recompute"])
    cluster = Cluster(
        s["tflops"] * 1e12, s["inside"] * 1e9, s["between"] * 1e9, s["latency"] / 1e6, 8
    )
    tensor = min(gpus, 8) if s["way"] in ("FSDP2 x tensor 8", "tensor 8 x pipeline 8") else 1
    stages = min(gpus / tensor, 8) if s["way"] == "tensor 8 x pipeline 8" else 1
    data = gpus / tensor / stages
    pieces = max(1, s["tokens"] / s["context"] / data / s["together"])
    plan = Plan(data, tensor, stages, pieces, s["parts"], s["way"] in ("FSDP2", "FSDP2 x tensor 8"))
    found = step(network, cluster, plan, s["tokens"])
    part = found["compute"] / found["step"]
    return {"step": found["step"], "part": part, "bytes": memory(network, plan, 16)}


def copies(s: dict) -> float:
    """How many GPUs a step has sequences for."""
    parts = (
        64 if s["way"] == "tensor 8 x pipeline 8" else 8 if s["way"] == "FSDP2 x tensor 8" else 1
    )
    return s["tokens"] / s["context"] * parts


def paying(s: dict, counts: list) -> float:
    """The most of ``counts`` up to which each doubling makes a step at least 1.5 times as fast."""
    most, pays = 1, True
    for gpus in counts:
        pays = pays and crowd(s, gpus / 2)["step"] >= 1.5 * crowd(s, gpus)["step"]
        most = gpus if pays else most
    return most
