"""spread.py: a transformer over many GPUs: its layers split, its parameters sharded, or copied."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as tp
from torch.nn.parallel import DistributedDataParallel as DDP


def spread(model, mesh, shard=False, half=False):
    """Tensor parallelism over the mesh's axis "tensor", then data parallelism over "data".

    The model has an embedding, blocks, a norm and a head, named as in train.py. Returns what to
    call. Shard: parameters, gradients and optimizer states are spread (FSDP2), else copied (DDP).
    """
    data, tensor = mesh["data"], mesh["tensor"]
    if tensor.size() > 1:  # Shard(1) is a part of the time: sums and norms work there
        columns = dict.fromkeys(("query", "key", "value", "up"), tp.ColwiseParallel())
        rows = dict.fromkeys(("out", "down"), tp.RowwiseParallel(output_layouts=Shard(1)))
        plan = {f"blocks.*.{name}": style for name, style in (columns | rows).items()}
        plan["embedding"] = tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        plan["head"] = tp.ColwiseParallel(output_layouts=Replicate())
        norms = ("norm", "blocks.*.before_attention", "blocks.*.before_mlp")
        whole = {"output_layouts": Shard(1), "desired_output_layouts": Replicate()}
        gather = dict.fromkeys(norms, tp.PrepareModuleOutput(**whole))
        tp.parallelize_module(model, tensor, plan | dict.fromkeys(norms, tp.SequenceParallel()))
        tp.parallelize_module(model, tensor, gather)
    if shard:  # each block is gathered before it computes, and freed after
        # Parameters travel in bfloat16; what a block is given stays as it is.
        policy = MixedPrecisionPolicy(torch.bfloat16 if half else None, torch.float32, None, False)
        for part in (*model.blocks, model):
            fully_shard(part, mesh=data, mp_policy=policy)
    elif data.size() > 1:
        return DDP(model, gradient_as_bucket_view=True)
    return model
