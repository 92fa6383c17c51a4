"""spread.py: a model over many GPUs: its parameters spread over them, or a copy on each."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def spread(model, mesh, shard=False, half=False):
    """Data parallelism over a mesh of one axis, such as ``mesh["data"]``; return what to call.

    Shard: parameters, gradients and optimizer states are spread (FSDP2), block by block of
    ``model.blocks``; else each GPU has a copy (DDP). Half: what is spread is gathered in bfloat16;
    call it under autocast. What an embedding gives is then bfloat16, and so is what blocks add up.
    As with DDP, the first rank's weights and buffers go to all; if sharded, not those on "meta" (on
    all ranks or none), nor buffers that no checkpoint holds. Call only what this returns.
    Before this, split layers, if at all (tensor_parallel.py; copies of them need shard), and
    freeze; after it, and before any forward pass, build the optimizer, or some weights may never
    move. Evaluate under no_grad: inference_mode before the first step makes it raise.
    No error tells you of these: batches of the wrong ranks (take ``mesh["data"]``'s size and local
    rank); means, if ranks have unequally many targets; layers that were sharded before this; equal
    seeds after it: give each rank of "data" its own, or all drop the same numbers.
    """
    if not shard:
        if half or (mesh.size() > 1 and any(hasattr(p, "placements") for p in model.parameters())):
            raise ValueError("half, and both axes at once, need shard")
        if mesh.size() == 1:
            return model
        # Over this axis alone: other GPUs may hold other stages, or other parts of layers.
        return DDP(model, process_group=mesh.get_group(), gradient_as_bucket_view=True)
    # What checkpoints hold is the first rank's, as in DDP; of split layers, its own part of them.
    for t in (getattr(t, "_local_tensor", t) for t in model.state_dict().values()):
        if mesh.size() > 1 and not getattr(t, "is_meta", True):
            sent = t.flatten().to(mesh.device_type)  # sent as bytes: gloo lacks some types
            torch.distributed.broadcast(sent.view(torch.uint8), group=mesh.get_group(), group_src=0)
            t.copy_(sent.view_as(t))
    # Parameters travel in bfloat16; what a block is given stays as it is.
    policy = MixedPrecisionPolicy(torch.bfloat16 if half else None, torch.float32, None, False)
    for part in (*model.blocks, model):  # each is gathered to compute, then freed
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return model


if __name__ == "__main__":  # one process, one block; train.py has a model and starts many
    torch.distributed.init_process_group(rank=0, world_size=1, store=torch.distributed.HashStore())
    model = torch.nn.Linear(8, 8)
    model.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8)])
    model = spread(model, torch.distributed.init_device_mesh("cpu", (1,)), shard=True)
    print("a weight is now", model.blocks[0].weight.placements)
