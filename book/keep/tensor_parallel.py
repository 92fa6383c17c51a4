"""tensor_parallel.py: each layer of a transformer is split over the GPUs of one axis of a mesh."""

from torch import distributed, nn
from torch.distributed.tensor import Replicate, Shard, init_device_mesh, parallel


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
    A time that does not divide by the ranks is refused.
    """
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    # Shard(1) is a part of the time: there sums and norms work.
    plan = dict.fromkeys(("query", "key", "value", "up"), parallel.ColwiseParallel())
    plan |= dict.fromkeys(("out", "down"), parallel.RowwiseParallel(output_layouts=Shard(1)))
    plan |= dict.fromkeys(("before_attention", "before_mlp", "norm"), parallel.SequenceParallel())
    plan["embedding"] = parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    plan["head"] = parallel.ColwiseParallel(output_layouts=Replicate())

    def check_time(layer, given):  # here all ranks still see all of it, so all stop alike
        if isinstance(layer, nn.Embedding) and given[0].shape[1] % mesh.size():
            raise ValueError(f"{mesh.size()} ranks do not divide a time of {given[0].shape[1]}")

    for name, layer in model.named_modules():
        layer.register_forward_pre_hook(check_time)
        parallel.parallelize_module(layer, mesh, style := plan.get(name.rpartition(".")[2], {}))
        if isinstance(style, parallel.SequenceParallel):
            # So query's, key's and value's gradients are added before one sum over the ranks.
            layer.register_forward_hook(lambda _, x, y: y.redistribute(placements=[Replicate()]))
    for name, p in model.named_parameters():
        if name not in trained or not hasattr(p, "placements"):
            raise ValueError(f"{name} is tied, frozen, or not named as in train.py")
        # A norm's comes in parts, which clipping takes as they are; the embedding's comes whole.
        p.register_hook(lambda grad, to=p.placements: grad.redistribute(placements=to))


if __name__ == "__main__":  # one process, one layer; train.py has a model and starts many
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    tensor_parallel(net := nn.ModuleDict({"head": nn.Linear(8, 8)}), init_device_mesh("cpu", (1,)))
    print("the head's weight is now", net["head"].weight.placements)
