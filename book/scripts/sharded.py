"""One small transformer, trained as one process does and in torch's ways to spread it.

sharded_cases.py starts them. Each returns losses of five steps, what a step sends, and memory.
"""

import contextlib
import io
import sys
from functools import partial
from itertools import product
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining as pp
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "keep"))
import train
from spread import spread
from tensor_parallel import tensor_parallel

LAYERS, WIDTH, CONTEXT, BATCH, STEPS = 4, 64, 16, 16, 5
TARGETS = BATCH * CONTEXT
whole_attention = F.scaled_dot_product_attention
train.HEAD = 16  # so that four ranks have one attention head each


# --- model, data, and the training of one process -------------------------------------------------


def network():
    """The model of train.py from one seed, the same on every rank."""
    torch.manual_seed(0)
    return train.Transformer(LAYERS, WIDTH, CONTEXT)


def windows(copy=0, copies=1):
    """Inputs and targets of a step: bytes of the Zen of Python, which every Python holds."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    text = "".join(this.d.get(letter, letter) for letter in this.s)
    return train.Windows(torch.tensor(list(text.encode())), CONTEXT, BATCH, 0, copy, copies)


def optimizer_of(module):
    return torch.optim.AdamW(module.parameters(), lr=2e-3, fused=True)


def trained(step, optimizer, after=lambda: None, steps=STEPS):
    """Take the steps; return the losses, and what the second one sent."""
    losses, traffic = [], Traffic()
    for number in range(steps):
        with traffic if number == 1 else contextlib.nullcontext():
            loss = step(number)
            after()
            optimizer.step()
        losses.append(loss.item())
        if number < steps - 1:
            optimizer.zero_grad()
    return losses, traffic


def alone(make=network):
    """One process's losses, in bits per byte, and the last gradient's norm: the measure of all."""
    net, feed = make(), windows()

    def step(number):
        loss = net(*feed(number)) / TARGETS
        loss.backward()
        return loss.detach()

    return trained(step, optimizer_of(net))[0], norm(net.parameters())


# --- what is counted ------------------------------------------------------------------------------

KINDS = {
    "all_gather": ("_allgather_base_", "all_gather_into_tensor"),
    "reduce_scatter": ("_reduce_scatter_base_", "reduce_scatter_tensor"),
    "all_reduce": ("allreduce_", "all_reduce", "all_reduce_"),
    "all_to_all": ("alltoall_base_", "all_to_all_single"),
    "send": ("send",),
}


class Traffic(TorchDispatchMode):
    """Counts collectives and the bytes of the whole tensor of each, as CommDebugMode with bytes."""

    def __init__(self):
        super().__init__()
        self.calls, self.bytes = {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # it calls what it is made of, and that comes here
        out = func(*args, **(kwargs or {}))
        space, name, *_ = *str(func).split("."), ""
        kind = next((k for k, names in KINDS.items() if name in names), None)
        if kind and "c10d" in space:
            found = torch.utils._pytree.tree_leaves((args, out))
            size = max(t.nbytes for t in found if isinstance(t, torch.Tensor))
            self.calls[kind] = self.calls.get(kind, 0) + 1
            self.bytes[kind] = self.bytes.get(kind, 0) + size
        return out


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def norm(weights, spread=False):
    """The gradient's norm: Adam forgives a wrong scale, and this does not."""
    found = nn.utils.get_total_norm([p.grad for p in weights])
    found = found.full_tensor() if isinstance(found, DTensor) else found
    if spread:  # each rank has weights of its own
        dist.all_reduce(square := found.square())
        found = square.sqrt()
    return found.item()


def memory(optimizer):
    """Bytes of this rank's part of parameters, gradients and Adam's two averages."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    moments = [optimizer.state[p][name] for p in weights for name in ("exp_avg", "exp_avg_sq")]
    parts = {"parameters": weights, "gradients": [p.grad for p in weights], "states": moments}
    return {name: sum(local(t).nbytes for t in part) for name, part in parts.items()}


def report(losses, traffic, optimizer, length):
    sent = {"calls": traffic.calls, "bytes": traffic.bytes}
    return {"losses": losses, "norm": length, "memory": memory(optimizer), **sent}


# --- data parallel, sharded, tensor parallel ------------------------------------------------------


def by_spread(shape, shard, net):
    """The codes to keep: `shape` is (copies of the model, ranks of each)."""
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    if shape[1] > 1:
        tensor_parallel(net, mesh["tensor"])
    return spread(net, mesh["data"], shard)


def by_hsdp(net):
    """Shards within two ranks, as within a machine; a copy of them on the other two."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for part in (*net.blocks, net):
        fully_shard(part, mesh=mesh)
    return net


def way(wrap, copies, feed=None):
    """Train what wrap makes of the model, of which there are so many copies or sums of shards."""
    net, tensor = network(), dist.get_world_size() // copies
    model, feed = wrap(net), feed or windows(dist.get_rank() // tensor, copies)
    optimizer = optimizer_of(net)

    def step(number):
        loss = model(*feed(number)) / TARGETS
        (loss * copies).backward()  # the copies' gradients are averaged
        return loss.detach()

    losses, traffic = trained(step, optimizer)
    whole = torch.tensor(losses)
    dist.all_reduce(whole)
    found = report((whole / tensor).tolist(), traffic, optimizer, norm(net.parameters()))
    names = "blocks.0.up.weight", "blocks.0.down.weight", "norm.weight"
    weights = {name: net.get_parameter(name) for name in names}
    lies = {name: str(getattr(weight, "placements", "whole")) for name, weight in weights.items()}
    grads = {str(getattr(p.grad, "placements", "whole")) for p in net.parameters()}
    return found | {"placements": lies, "gradients": sorted(grads)}


ddp = partial(way, partial(by_spread, (2, 1), False), 2)  # on two ranks
fsdp = partial(way, partial(by_spread, (2, 1), True), 2)
tensor = partial(way, partial(by_spread, (1, 2), False), 1)
both = partial(way, partial(by_spread, (2, 2), True), 2)  # on four
hsdp = partial(way, by_hsdp, 4)


def attention(q, k, v, is_causal=True):
    """This rank's queries, the keys and values of all: split along the time, which is dim 2."""
    world = dist.group.WORLD
    k, v = (all_gather_tensor_autograd(each.contiguous(), 2, world) for each in (k, v))
    before = dist.get_rank() * q.shape[2]  # positions that the ranks before this one have
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(before)
    return whole_attention(q, k, v, attn_mask=seen)


def context():
    """Two ranks, each with half of the time of all sequences; shards as in data parallelism."""
    rank, whole = dist.get_rank(), windows()

    def wrap(net):
        net.turns = net.turns.chunk(2, 1)[rank]  # the angles of this rank's positions
        return by_spread((2, 1), True, net)

    with mock.patch.object(F, "scaled_dot_product_attention", attention):
        return way(wrap, 2, lambda number: [x.chunk(2, 1)[rank] for x in whole(number)])


def reshard():
    """Two microbatches under each policy: collectives, the gradient's norm."""
    found, pairs = [], ((True, False), (False, False), (False, True))
    for policy, (every, kept) in product((None, False), pairs):
        net, feed = network(), windows(dist.get_rank(), dist.get_world_size())
        for part in (*net.blocks, net):
            fully_shard(part, reshard_after_forward=policy)
        with Traffic() as traffic:
            for piece in range(2):
                net.set_requires_gradient_sync(every or piece == 1)
                net.set_reshard_after_backward(not kept or piece == 1)
                (net(*feed(piece)) / TARGETS).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        counted = [traffic.calls[kind] for kind in ("all_gather", "reduce_scatter")]
        found.append([policy, every, kept, *counted, norm.full_tensor().item()])
    return found


# --- pipelines ------------------------------------------------------------------------------------


class Part(nn.Module):
    """One of `count` equal parts of the model, the first with the embedding."""

    def __init__(self, net, index, count):
        super().__init__()
        each = LAYERS // count
        self.first = net.embedding if index == 0 else nn.Identity()
        self.blocks = net.blocks[index * each : (index + 1) * each]
        self.last = nn.Sequential(net.norm, net.head) if index == count - 1 else nn.Identity()
        self.register_buffer("turns", net.turns)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, self.turns)
        return self.last(x)


def bits(logits, targets):
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return nats / train.math.log(2) / TARGETS


def pipeline(schedule, pieces, per_rank=1, there_and_back=False):
    """Train with a schedule of torch's; note in which order this rank works."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net, count, feed, order = network(), ranks * per_rank, windows(), []
    mine = (rank, count - 1 - rank) if there_and_back else range(rank, count, ranks)
    stages = [pp.PipelineStage(Part(net, n, count), n, count, torch.device("cpu")) for n in mine]
    parts = nn.ModuleList(stage.submod for stage in stages)
    for stage in stages:
        note(stage, order)
        stage._get_init_p2p_neighbors_ops = list  # of torch 2.11: gloo cannot send to itself
    optimizer = optimizer_of(parts)
    plan = schedule(stages if per_rank > 1 else stages[0], pieces, loss_fn=bits, scale_grads=False)
    last = 0 if there_and_back else ranks - 1  # who has the last part knows the loss

    def step(number):
        order.clear()
        (x, y), losses = feed(number), []
        given = (x.contiguous(),) if rank == 0 else ()  # torch 2.11 refuses a view of longer rows
        asked = {"target": y, "losses": losses} if rank == last else {}
        plan.step(*given, **asked)
        return sum(losses, torch.zeros(())).detach()

    losses, traffic = trained(step, optimizer)
    whole = torch.tensor(losses)
    dist.broadcast(whole, last)
    length = norm(parts.parameters(), spread=True)
    return report(whole.tolist(), traffic, optimizer, length) | {"order": order}


def note(stage, order):
    """Let the stage write down what it does: F, B or its halves I and W, stage, microbatch."""

    def noted(kind, work, piece, *args, **kwargs):
        kind = kind if kwargs.get("full_backward", True) else "I"
        order.append((kind, stage.stage_index, piece))
        return work(piece, *args, **kwargs)

    stage.forward_one_chunk = partial(noted, "F", stage.forward_one_chunk)
    stage.backward_one_chunk = partial(noted, "B", stage.backward_one_chunk)
    stage.backward_weight_one_chunk = partial(noted, "W", stage.backward_weight_one_chunk)


def pipelines():
    """As popular articles write it, the batch in one piece; then two schedules."""
    return {
        "one batch": pipeline(pp.ScheduleGPipe, 1),
        "GPipe": pipeline(pp.ScheduleGPipe, 8),
        "1F1B": pipeline(pp.Schedule1F1B, 8),
    }


def chunked():
    """Each rank has two parts: not neighbours, or the way there and the way back."""
    schedules = pp.schedules
    return {
        "interleaved": pipeline(schedules.ScheduleInterleaved1F1B, 8, 2),
        "zero bubble": pipeline(schedules.ScheduleZBVZeroBubble, 8, 2, there_and_back=True),
    }
