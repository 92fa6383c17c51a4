"""spread.py: a transformer over many GPUs: its layers split, its parameters sharded, or copied."""

import torch
from torch.distributed import fsdp, tensor


def spread(model, mesh, shard=False, half=False, ddp=torch.nn.parallel.DistributedDataParallel):
    """Tensor parallelism over the mesh's axis "tensor", then data parallelism over "data".

    The model has an embedding, blocks, a norm and a head, named as in train.py. Call only what this
    returns; build the optimizer next, before any forward pass, or some weights may never move.
    Shard: parameters, gradients and optimizer states are spread (FSDP2), else copied (DDP, over
    "data" alone). Half: what is sharded is gathered in bfloat16; call it under autocast.
    No error tells you of these. On both axes: batches of the wrong ranks (sample by mesh["data"]'s
    size and local rank); means, if ranks have unequally many targets. Along "tensor":
    - between blocks each rank holds only some positions of the sequence, so these are wrong: a
      plain tensor of positions added there; means over time or tokens; losses of hidden states;
    - within, it has a part of the width: heads in a fixed number (reshape as (-1, head width));
      norms over all heads; scales by the width found there; gate and up, or query, key and value,
      fused in one layer (only the names qkv and kv are refused);
    - tied weights come apart; frozen norms train again, frozen biases raise (freeze after this);
      built on "meta", norms have gradients of placement Partial (look at no local part); dropout
      needs another seed on each rank (after this); GradScaler skips a step on one rank, not on all
      (take bfloat16); compiled, torch 2.15's losses differed (by hand, not recorded).
    There the time must divide by the ranks, and blocks have no other modules named q…, k…, v…,
    u…, o… or d… ("dropout": torch "only support nn.Linear").
    """
    group = mesh["data"].get_group() if mesh["data"].size() > 1 and not shard else None  # copies
    assert shard or not (half or min(mesh.shape) > 1), "half, and both axes at once, need shard"
    if mesh["tensor"].size() > 1:  # cut: a part of the time, where sums and norms work
        tp, cut, whole = tensor.parallel, tensor.Shard(1), tensor.Replicate()
        col, row, seq = tp.ColwiseParallel, tp.RowwiseParallel, tp.SequenceParallel()
        # Query, key, value and up, but no qkv nor kv, which would be cut across; then out and down.
        plan = {"head": col(output_layouts=whole), "blocks.*.[od]*": row(output_layouts=cut)}
        plan |= {"blocks.*.[qkvu][!kv]*": col(), "e*": row(input_layouts=whole, output_layouts=cut)}
        tp.parallelize_module(model, mesh["tensor"], plan | {"norm": seq, "blocks.*.before_*": seq})
        # Norms return DTensors, so query's, key's and value's gradients are added before one sum.
        for norm in (m for n, m in model.named_modules() if n == "norm" or ".before_" in n):
            norm.register_forward_hook(lambda norm, x, y: y.redistribute(placements=[whole]))
        for name, p in model.named_parameters():
            assert hasattr(p, "placements"), f"the plan has no {name}: name it as train.py does"
            p.dim() > 1 or p.register_hook(lambda grad: grad.redistribute(placements=[whole]))
    # Parameters travel in bfloat16; what a block is given stays as it is.
    policy = fsdp.MixedPrecisionPolicy(torch.bfloat16 if half else None, torch.float32, None, False)
    for part in (*model.blocks, model) if shard else ():  # each is gathered to compute, then freed
        fsdp.fully_shard(part, mesh=mesh["data"], mp_policy=policy)
    return ddp(model, process_group=group, gradient_as_bucket_view=True) if group else model


if __name__ == "__main__":  # one process, one block; train.py has a model and starts many
    torch.distributed.init_process_group(rank=0, world_size=1, store=torch.distributed.HashStore())
    mesh = torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    model, model.blocks = torch.nn.Linear(8, 8), torch.nn.ModuleList([torch.nn.Linear(8, 8)])
    print("a weight is now", spread(model, mesh, shard=True).blocks[0].weight.placements)
