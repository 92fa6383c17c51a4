"""spread.py: a transformer over many GPUs: its layers split, its parameters sharded, or copied."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, parallel


def spread(model, mesh, shard=False, half=False):
    """Tensor parallelism over the mesh's axis "tensor", then data parallelism over "data".

    The model has an embedding, blocks, a norm and a head, named as in train.py. Returns what to
    call. Shard: parameters, gradients and optimizer states are spread (FSDP2), else copied (DDP).
    Half: what is sharded is gathered in bfloat16; call it under autocast. Ranks along both axes
    need shard. Along "tensor" the time must divide by the ranks, and no other module of a block
    may be named q…, k…, v…, u…, o… or d… ("dropout": "only support nn.Linear", torch raises).
    """
    if mesh["tensor"].size() > 1:  # Shard(1) is a part of the time: sums and norms work there
        rms, row = ("norm", "blocks.*.before_*"), parallel.RowwiseParallel(output_layouts=Shard(1))
        # "[qkvu]*" are query, key, value and up; "[od]*" are out and down.
        plan = {"blocks.*.[qkvu]*": parallel.ColwiseParallel(), "blocks.*.[od]*": row}
        plan["emb*"] = parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        plan["head"] = parallel.ColwiseParallel(output_layouts=Replicate())
        # What norms hand on stays a DTensor: gradients of query, key and value are summed as one.
        whole = {"desired_output_layouts": Replicate(), "use_local_output": False}
        out = parallel.PrepareModuleOutput(output_layouts=Shard(1), **whole)
        for way in plan | dict.fromkeys(rms, parallel.SequenceParallel()), dict.fromkeys(rms, out):
            parallel.parallelize_module(model, mesh["tensor"], way)
        for p in (p for p in model.parameters() if p.dim() == 1):  # torch 2.11 clips parts of sums
            p.register_hook(lambda grad: grad.redistribute(placements=[Replicate()]))
    # Parameters travel in bfloat16; what a block is given stays as it is.
    policy = MixedPrecisionPolicy(torch.bfloat16 if half else None, torch.float32, None, False)
    for part in (*model.blocks, model) if shard else ():  # each is gathered to compute, then freed
        fully_shard(part, mesh=mesh["data"], mp_policy=policy)
    ddp, copied = torch.nn.parallel.DistributedDataParallel, mesh["data"].size() > 1 and not shard
    return ddp(model, gradient_as_bucket_view=True) if copied else model


if __name__ == "__main__":  # one process, one block; train.py has a model and starts many
    torch.distributed.init_process_group(rank=0, world_size=1, store=torch.distributed.HashStore())
    mesh = torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    model, model.blocks = torch.nn.Linear(8, 8), torch.nn.ModuleList([torch.nn.Linear(8, 8)])
    print("a weight is now", spread(model, mesh, shard=True).blocks[0].weight.placements)
