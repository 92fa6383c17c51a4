"""What a training step costs on many GPUs, and what failures cost: formulas, nothing measured.

Sizes are in bytes, times in seconds, speeds in FLOP/s and bytes/s. Communication is a latency and
bytes over bandwidth (chapter 5.1 fits both). Nothing knows of the host: where launching a step
takes longer than computing it, a step takes longer than it says here (chapter 5.3).

    network = Network(parameters=70e9, layers=80, width=8192, context=8192)
    cluster = Cluster(flops=0.5 * 989e12, inside=350e9, between=50e9)
    step(network, cluster, Plan(data=64, tensor=8, shard=True), tokens=4 * 2**20)["step"]
"""

import math
from dataclasses import dataclass

HALF = 2  # bytes of a number that travels: bfloat16


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

    ``flops`` is what one GPU reaches on this network alone, not its peak: measure it. ``inside``
    and ``between`` are the bus bandwidths of a GPU within a machine and to other machines.
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
    link = cluster.inside if plan.gpus <= cluster.per_machine else cluster.between
    once = all_reduce(weights, plan.data, link, wait)
    if plan.shard:  # two gathers a microbatch, one reduce-scatter: behind all of the work
        left = exposed((pieces + 0.5) * once, compute, once / network.layers)
    else:  # behind the backward pass of the last microbatch
        left = exposed(once, compute * 2 / 3 / pieces, once / network.layers)
    idle = compute * bubble(plan.stages, pieces, plan.parts)
    found = {"compute": compute, "bubble": idle, "tensor": split, "pipeline": sent, "data": left}
    return {**found, "step": sum(found.values())}


def memory(network: Network, plan: Plan, each: float = 16) -> float:
    """Bytes of parameters, gradients and Adam's states on a GPU; ``each`` for a parameter."""
    return each * network.parameters / plan.tensor / plan.stages / (plan.data if plan.shard else 1)


def save_every(save: float, mtbf: float) -> float:
    """The interval between checkpoints that loses least (Young, 1974).

    ``save`` is how long training stands still for one, ``mtbf`` the mean time between failures of
    the whole job.
    """
    return math.sqrt(2 * save * mtbf)


def lost(interval: float, save: float, restart: float, mtbf: float) -> float:
    """The part of the time lost to saving, to work done twice, and to starting again."""
    return save / interval + (interval / 2 + restart) / mtbf
