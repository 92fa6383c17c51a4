"""spread.py: a transformer over many GPUs: its layers split, its parameters sharded, or copied."""

import torch
from torch.distributed import fsdp, tensor


def spread(model, mesh, shard=False, half=False):
    """Tensor parallelism over the mesh's axis "tensor", then data parallelism over "data".

    The model has an embedding, blocks, a norm and a head, named as in train.py. Returns what to
    call; build the optimizer next, before any forward pass, or some weights may never move. Shard:
    parameters, gradients and optimizer states are spread (FSDP2), else copied (DDP). Half: what is
    sharded is gathered in bfloat16; call it under autocast. No error, but wrong:
    - copied beside a pipeline: DDP makes one model of all ranks of the job, so shard there;
    - along "tensor": a fused qkv, cut across; tied weights, which come apart; frozen norms, which
      train again (freeze after this); batches that differ (sample by mesh["data"]'s size and local
      rank); dropout with one seed, the same on all ranks (seed each anew after this); compiled,
      torch 2.15's losses differed (tried by hand, not recorded).
    Along "tensor" the time must divide by the ranks; reshape heads as (-1, head width): a rank has
    only its part of them; layers named otherwise or nested need another plan; and no other module
    of a block may be named q…, k…, v…, u…, o… or d… ("dropout": torch "only support nn.Linear").
    """
    ddp, copied = torch.nn.parallel.DistributedDataParallel, mesh["data"].size() > 1 and not shard
    assert shard or not (half or min(mesh.shape) > 1), "half, and both axes at once, need shard"
    if mesh["tensor"].size() > 1:  # cut: a part of the time, where sums and norms work
        tp, cut, whole = tensor.parallel, tensor.Shard(1), tensor.Replicate()
        col, row, seq = tp.ColwiseParallel, tp.RowwiseParallel, tp.SequenceParallel()
        # "[qkvu]*" are query, key, value and up; "[od]*" are out and down.
        plan = {"head": col(output_layouts=whole), "blocks.*.[od]*": row(output_layouts=cut)}
        plan |= {"blocks.*.[qkvu]*": col(), "emb*": row(input_layouts=whole, output_layouts=cut)}
        tp.parallelize_module(model, mesh["tensor"], plan | {"norm": seq, "blocks.*.before_*": seq})
        # What norms hand on stays a DTensor: gradients of query, key and value are summed as one.
        for norm in (m for n, m in model.named_modules() if n == "norm" or ".before_" in n):
            norm.register_forward_hook(lambda norm, x, y: y.redistribute(placements=[whole]))
        for name, p in model.named_parameters():
            assert hasattr(p, "placements"), f"the plan has no {name}: name it as train.py does"
            p.dim() > 1 or p.register_hook(lambda grad: grad.redistribute(placements=[whole]))
    # Parameters travel in bfloat16; what a block is given stays as it is.
    policy = fsdp.MixedPrecisionPolicy(torch.bfloat16 if half else None, torch.float32, None, False)
    for part in (*model.blocks, model) if shard else ():  # each is gathered to compute, then freed
        fsdp.fully_shard(part, mesh=mesh["data"], mp_policy=policy)
    return ddp(model, gradient_as_bucket_view=True) if copied else model


if __name__ == "__main__":  # one process, one block; train.py has a model and starts many
    torch.distributed.init_process_group(rank=0, world_size=1, store=torch.distributed.HashStore())
    mesh = torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    model, model.blocks = torch.nn.Linear(8, 8), torch.nn.ModuleList([torch.nn.Linear(8, 8)])
    print("a weight is now", spread(model, mesh, shard=True).blocks[0].weight.placements)
