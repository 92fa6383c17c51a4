"""What chapter 5.4 runs on many ranks: by hand, with experts, saved and loaded, and sharded.py's.

    torchrun --standalone --nproc-per-node=4 sharded_cases.py --folder DIR --all both

The first two ranks and the second two are worlds of their own, then all four are one. Every rank
prints one JSON object, {case: {...}, ...}. The ranks are CPU processes (gloo).
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

import sharded
import torch
import torch.distributed as dist
from sharded import LAYERS, TARGETS, WIDTH, network, optimizer_of, spread, train, windows
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.tensor import parallel as tp
from torch.nn import functional as F

# --- by hand --------------------------------------------------------------------------------------


def sharded_layer(x, shard):
    """Gather the weight, compute, send the gradient to its owners, forget the weight."""
    ranks = dist.get_world_size()
    weight = shard.new_empty(ranks * shard.shape[0], shard.shape[1])
    dist.all_gather_into_tensor(weight, shard)
    F.linear(x, weight.requires_grad_()).square().mean().backward()
    gradient = torch.empty_like(shard)
    dist.reduce_scatter_tensor(gradient, weight.grad)  # the sum, of which each keeps its shard
    return gradient / ranks


def summed(part):
    """The sum over the ranks, in place. Autograd does not see it: the gradient passes as it is."""
    dist.all_reduce(part.detach())
    return part


def split_layers(x, up, down):
    """Two layers; each rank has a part of the numbers between them. One all-reduce each way."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = x.view_as(x)
    x.register_hook(lambda gradient: summed(gradient.clone()))  # a rank has only a summand of it
    middle = F.gelu(F.linear(x, up.chunk(ranks)[rank]))  # some of the columns, complete
    return summed(F.linear(middle, down.chunk(ranks, dim=1)[rank]))  # was only a summand


def by_hand(folder):
    """The largest difference of both from one process, as a part of the largest number."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, up, down = torch.randn(8, 32), torch.randn(64, 32), torch.randn(32, 64)
    (whole,) = torch.autograd.grad(F.linear(x, up.requires_grad_()).square().mean(), up)
    up = up.detach()

    def apart(a, b):
        return ((a - b).abs().max() / b.abs().max()).item()

    mine = sharded_layer(x.chunk(ranks)[rank], up.chunk(ranks)[rank].clone())
    wide = F.linear(F.gelu(F.linear(x.requires_grad_(), up)), down), split_layers(x, up, down)
    slopes = [torch.autograd.grad(y.square().mean(), x)[0] for y in wide]
    parts = {"sharded": apart(mine, whole.chunk(ranks)[rank])}
    return parts | {"split": max(apart(b, a) for a, b in (wide, slopes))}


def loss_parallel(folder):
    """The loss of logits that stay split over the ranks: difference from one process's, calls."""
    torch.manual_seed(0)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    head, x, y = nn.Linear(WIDTH, 256), torch.randn(64, WIDTH), torch.randint(256, (64,))
    whole = F.cross_entropy(head(x), y).item()
    tp.parallelize_module(head, mesh, tp.ColwiseParallel(use_local_output=False))  # Shard(-1)
    with sharded.Traffic() as traffic, tp.loss_parallel():
        loss = F.cross_entropy(head(x), y)
        loss.backward()
    return {"apart": abs(loss.full_tensor().item() - whole), "calls": traffic.calls}


def three_sums(folder):
    """The code to keep's tensor parallelism, but norms hand on tensors: a sum for each layer."""

    def each(net):
        sharded.by_spread((1, 2), False, net)
        for norm in (module for module in net.modules() if isinstance(module, nn.RMSNorm)):
            norm.register_forward_hook(lambda norm, x, y: y.to_local())
        return net

    return sharded.way(each, 1)


# --- experts --------------------------------------------------------------------------------------


def plain(tokens, take, give):
    """Send rows to all ranks and take theirs. It looks right, but stops the gradient."""
    received = tokens.new_empty(sum(take), tokens.shape[1])
    dist.all_to_all_single(received, tokens, take, give)
    return received


class Exchange(torch.autograd.Function):
    """The same with its gradient: the exchange in the other direction."""

    @staticmethod
    def forward(ctx, tokens, take, give):
        ctx.splits = give, take
        return plain(tokens, take, give)

    @staticmethod
    def backward(ctx, gradient):
        return plain(gradient.contiguous(), *ctx.splits), None, None


class Experts(nn.Module):
    """Four small networks of which each token goes to one, on this rank or on another."""

    def __init__(self):
        super().__init__()
        self.router = train.linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(train.linear(WIDTH, WIDTH), nn.GELU(), train.linear(WIDTH, WIDTH))
            for _ in range(4)
        )
        self.exchange, self.sent = None, None

    def forward(self, x, turns):
        tokens = x.flatten(0, 1)
        chance, choice = self.router(tokens).softmax(-1).max(-1)
        order = choice.argsort(stable=True)  # the tokens of expert 0 first
        work = self.away if self.exchange else self.here
        done = work(tokens[order], choice.bincount(minlength=4))
        done = torch.empty_like(tokens).index_copy(0, order, done)
        return x + (chance[:, None] * done).view_as(x)

    def here(self, tokens, counts):
        parts = zip(self.experts, tokens.split(counts.tolist()), strict=True)
        return torch.cat([expert(part) for expert, part in parts])

    def away(self, tokens, counts):
        """Rank r has expert r: say how many come, send them, compute, send them back."""
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts)
        give, take = counts.tolist(), coming.tolist()
        self.sent = give
        done = self.experts[0](self.exchange(tokens, take, give))
        return self.exchange(done, give, take)


def with_experts():
    net = network()
    net.blocks.insert(LAYERS // 2, Experts())
    return net


def experts(folder, exchange=Exchange.apply, steps=sharded.STEPS):
    """Each rank has its part of the batch, one expert, and a copy of all the rest."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net, feed = with_experts(), windows(rank, ranks)
    layer = net.blocks[LAYERS // 2]
    layer.exchange, layer.experts = exchange, layer.experts[rank : rank + 1]
    own = {id(p) for p in layer.experts.parameters()}
    rest = [p for p in net.parameters() if id(p) not in own]
    optimizer = optimizer_of(net)

    def step(number):
        loss = net(*feed(number)) / TARGETS
        loss.backward()
        return loss.detach()

    def sum_of_copies():  # an expert has had the tokens of all ranks: its gradient is whole
        for p in rest:
            dist.all_reduce(p.grad)

    losses, traffic = sharded.trained(step, optimizer, sum_of_copies, steps)
    whole = torch.tensor(losses)
    dist.all_reduce(whole)
    without = [name for name, p in net.named_parameters() if p.grad is None]
    found = {"losses": whole.tolist(), "sent": layer.sent, "without": without}
    if without:
        return found
    norms = sharded.norm(rest), sharded.norm(layer.experts.parameters(), spread=True)
    length = torch.tensor(norms).norm().item()
    return sharded.report(whole.tolist(), traffic, optimizer, length) | found


def cut(folder):
    """The same with the exchange that autograd does not know."""
    return experts(folder, plain, steps=3)


# --- checkpoints, seeds, microbatches -------------------------------------------------------------


def state(folder, load=True):
    """A digest of model and optimizer, sharded over all ranks: loaded, or trained and saved."""
    ranks = dist.get_world_size()
    net, feed = network(), windows(dist.get_rank(), ranks)
    spread(net, dist.init_device_mesh("cpu", (ranks,)), shard=True)
    optimizer = optimizer_of(net)
    for number in range(0 if load else 3):
        (net(*feed(number)) / TARGETS).backward()
        optimizer.step()
        optimizer.zero_grad()
    parts = dict(zip(("model", "optimizer"), states.get_state_dict(net, optimizer), strict=True))
    if load:
        dcp.load(parts, checkpoint_id=folder)
        into = {"model_state_dict": parts["model"], "optim_state_dict": parts["optimizer"]}
        states.set_state_dict(net, optimizer, **into)
    else:
        dcp.save(parts, checkpoint_id=folder)
    whole = states.StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True)
    return {"digest": digest(states.get_state_dict(net, optimizer, options=whole))}


def digest(parts):
    """SHA-256 of all tensors of the states of a model and an optimizer, flat, in order of name."""
    both = sorted((parts[0] | parts[1]).items())
    tensors = [(name, value) for name, value in both if isinstance(value, torch.Tensor)]
    found = hashlib.sha256()
    for name, tensor in tensors:
        found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return f"{len(tensors)} tensors, {found.hexdigest()}"


def saved(folder):
    return state(folder, load=False) | {"files": sorted(p.name for p in Path(folder).iterdir())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where a checkpoint is, or will be")
    for ranks in ("first", "second", "all"):
        parser.add_argument(f"--{ranks}", nargs="*", default=[], metavar="CASE")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node=4")
    found, rank = {}, int(os.environ["RANK"])
    pair = options.first if rank < 2 else options.second
    for name, size, cases in ((f"pair{rank // 2}", 2, pair), ("all", 4, options.all)):
        store = dist.FileStore(f"{options.folder}/{name}", size)
        dist.init_process_group("gloo", store=store, rank=rank % size, world_size=size)
        for case in cases:
            own = globals().get(case)
            found[case] = own(f"{options.folder}/saved") if own else getattr(sharded, case)()
        dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
