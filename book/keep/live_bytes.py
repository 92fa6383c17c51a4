"""live_bytes.py: the memory of a training step, without a GPU."""

from traceback import walk_stack

import torch


class LiveBytes(torch.utils._python_dispatch.TorchDispatchMode):
    """Refused: autocast, dropout, RNNs (rnn.py), torch.optim's loops (give foreach or fused)."""

    def __init__(self):  # the base class needs no call
        # {storage: blocks of 512 bytes}, sums in bytes, and whether something to refuse was seen
        self.alive, self.history, self.bad = torch.utils.weak.WeakIdKeyDictionary(), [], False

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        # The files and functions that called
        by = str([frame.f_code for frame, _ in walk_stack(None)]).replace("\\", "/")
        # Autocast is off in most operators. What torch computes by a prim operator may not raise
        self.bad |= torch._C._is_any_autocast_enabled() or "_single_tensor" in by or "/rnn.py" in by
        assert op.namespace == "prim" or not (self.bad or "bernoulli" in str(op)), self.__doc__
        unknown = "_local" in str(op) and getattr(args[0], "constant", 0) is None  # fake, no number
        # loss.item() gives 0 and bool(loss > 1) False; an integer may be a size, so it raises
        out = 0 if unknown and "int" not in str(args[0].dtype) else op(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, out if isinstance(out, list | tuple) else [out]):
            self.alive[tensor.untyped_storage()] = -(-tensor.untyped_storage().nbytes() // 512)
        self.history.append(512 * sum(self.alive.data.values()))
        return out


def train(device):
    """Two steps of your training: make all of it in here, on the device; no `.to()`, no compile."""
    model = torch.nn.Linear(4096, 50_000, device=device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)  # as a GPU does by default
    for _ in range(2):  # the first has no optimizer state yet
        optimizer.zero_grad()
        model(torch.ones(1024, 4096, device=device)).logsumexp(1).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    with torch._subclasses.FakeTensorMode(), LiveBytes() as live:
        train("cpu"), print(f"peak {max(live.history) >> 20} MiB")
    # On a GPU: train("cuda"), then torch.cuda.max_memory_allocated() >> 20; cuBLAS adds up to 64
