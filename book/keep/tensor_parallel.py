"""tensor_parallel.py: each layer of a transformer is split over the GPUs of one axis of a mesh."""

from torch import distributed, nn
from torch.distributed.tensor import Replicate, Shard, parallel


def tensor_parallel(model, mesh):
    """Split the layers, in place, over a mesh of one axis, such as ``mesh["tensor"]``.

    Layers are known by their names in train.py: embedding, norm, head, and in the blocks
    before_attention, query, key, value, out, before_mlp, up, down. Freeze after this, not before.
    No error tells you of these:
    - between blocks each rank holds only some positions of the sequence, so these are wrong: a
      plain tensor of positions added there; means over time or tokens; losses of hidden states;
    - within, it has a part of the width (reshape heads as (-1, head width)), so these are wrong:
      norms over all heads; scales by the width found there; gate and up as halves of one layer;
    - built on "meta", norms have gradients of placement Partial (look at no local part); dropout
      needs another seed on each rank (after this); GradScaler may skip a step on one rank alone,
      where the optimizer's first gradient is a norm's, say, as the embedding is frozen (take
      bfloat16); compiled, torch 2.15's losses differed (by hand, not recorded).
    The time must divide by the ranks.
    """
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    whole, cut = Replicate(), Shard(1)  # cut: a part of the time, where sums and norms work
    plan = dict.fromkeys(("query", "key", "value", "up"), parallel.ColwiseParallel())
    plan |= dict.fromkeys(("out", "down"), parallel.RowwiseParallel(output_layouts=cut))
    plan |= dict.fromkeys(("before_attention", "before_mlp", "norm"), parallel.SequenceParallel())
    plan["embedding"] = parallel.RowwiseParallel(input_layouts=whole, output_layouts=cut)
    plan["head"] = parallel.ColwiseParallel(output_layouts=whole)
    for name, layer in model.named_modules():
        if style := plan.get(name.rpartition(".")[2]):
            parallel.parallelize_module(layer, mesh, style)
        if isinstance(style, parallel.SequenceParallel):
            # So query's, key's and value's gradients are added before one sum over the ranks.
            layer.register_forward_hook(lambda layer, x, y: y.redistribute(placements=[whole]))
    for name, p in model.named_parameters():
        if name not in trained or not hasattr(p, "placements"):
            raise ValueError(f"{name} is tied, frozen, or not named as in train.py")
        # A norm's comes in parts, which clipping takes as they are; the embedding's comes whole.
        p.register_hook(lambda grad, to=p.placements: grad.redistribute(placements=to))


if __name__ == "__main__":  # one process, one layer; train.py has a model and starts many
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    model = nn.ModuleDict({"head": nn.Linear(8, 8, bias=False)})
    tensor_parallel(model, distributed.init_device_mesh("cpu", (1,)))
    print("the head's weight is now", model["head"].weight.placements)
