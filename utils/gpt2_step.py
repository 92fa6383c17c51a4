"""The training step that part 2 weighs: GPT-2 small, with a place for each remedy, and remedies.

Records keep a hash of what these functions say, docstrings aside. That is why they have no type
hints: adding one would make those records stale.
"""

import statistics
import time
import weakref
from functools import partial

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from utils.memory import GIB, clean, peak_bytes
from utils.models import Transformer
from utils.plotting import Table

BATCH, TIME, VOCABULARY = 8, 1024, 50_257  # sequences a step, tokens each, known tokens
SLICE = 512  # tokens
ATTENTION = [
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
PRODUCTS = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]


def direct(block, x):
    """Run a block as it is: (n, time, width) to the same."""
    return block(x)


def whole(model, hidden, targets):
    """Return the mean cross entropy of all tokens at once, from the last layer on.

    Parameters
    ----------
    model : Transformer
        Of which only the last layer, ``head``, is used.
    hidden : Tensor
        (n, time, width), what the last layer reads.
    targets : Tensor
        (n, time), the next token of each.
    """
    return F.cross_entropy(model.head(hidden).flatten(0, 1), targets.flatten())


def features(model, tokens, run):
    """Return what the last layer reads, (n, time, width), each block run as ``run(block, x)``.

    With :func:`direct` it is ``model.features(tokens)`` of :class:`utils.models.Transformer`.
    """
    x = model.tokens(tokens) + model.positions.weight[: tokens.shape[1]]
    for block in model.blocks:
        x = run(block, x)
    return model.norm(x)


def half_type():
    """Return ``torch.bfloat16``, or ``torch.float16`` where the card has no bfloat16."""
    good = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if good else torch.float16


def training(
    run=direct,
    head=whole,
    amp=False,
    micro=1,
    optimizer=torch.optim.AdamW,
    dtype=torch.float32,
    batch=BATCH,
    time=TIME,
    vocabulary=VOCABULARY,
):
    """Return a function that makes one optimizer step on the GPU; options take the remedies.

    Parameters
    ----------
    run : callable
        Runs a block, as :func:`direct` does: recomputation and offloading go here.
    head : callable
        Last layer and loss, as :func:`whole`: a chunked loss goes here.
    amp : bool
        Whether to run forward passes under autocast to :func:`half_type`.
    micro : int
        In how many pieces to take the batch; their gradients add up.
    optimizer : callable
        Given the parameters and ``lr``.
    dtype : torch.dtype
        Of the parameters.
    batch, time : int
        Sequences a step and tokens of each; at most 1,024 tokens.
    vocabulary : int
        Tokens that the network knows; the data have 50,257, so at least that many.
    """
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Transformer(vocabulary).to(dtype)
        data = torch.randint(VOCABULARY, (batch, time + 1))
    optimizer = optimizer(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad()
        for part in data.chunk(micro):
            with torch.amp.autocast("cuda", dtype=half_type(), enabled=amp):
                loss = head(model, features(model, part[:, :-1], run), part[:, 1:])
            (loss / micro).backward()
        optimizer.step()

    return step


def peak_and_time(make=training, repeats=5, **remedies):
    """Build a step, run it on an empty GPU, and return its peak and its time.

    Parameters
    ----------
    make : callable
        Given ``remedies``, returns a function that makes a step.
    repeats : int
        How many steps are timed, after two others.

    Returns
    -------
    list of float
        The peak in GiB, above what was allocated before, and the median milliseconds a step.

    Raises
    ------
    AssertionError
        If 0.25 GiB or more are allocated before: then the last step would be weighed, too.
    """
    clean()
    before = torch.cuda.memory_allocated()  # libraries' workspaces
    assert before < 0.25 * GIB, "something of the last step is still alive"
    step = make(**remedies)
    step()  # creates the optimizer's state, loads libraries
    peak, seconds = peak_bytes(step) - before, []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    del step
    clean()
    return [round(peak / GIB, 3), round(statistics.median(seconds) * 1e3, 2)]


def listed(result: dict[str, list[float]]) -> Table:
    """Return a table of what :func:`peak_and_time` found, with the ratios to the first row."""
    (gib, ms), rows = next(iter(result.values())), []
    for name, (peak, took) in result.items():
        times = f"{peak / gib:.2f}", f"{took:.1f} ms", f"{took / ms:.2f}"
        rows.append([name, f"{peak:.2f} GiB", *times])
    return Table(["step", "peak", "of the first", "time", "times the first"], rows)


# --- remedies ------------------------------------------------------------------------------------


def summed_loss(model, hidden, targets):
    """Return the sum of the cross entropies of a slice: (n, width) states, (n) next tokens."""
    return F.cross_entropy(model.head(hidden), targets, reduction="sum")


def chunked(model, hidden, targets, size=SLICE):
    """Return what :func:`whole` does, for ``size`` tokens at a time.

    Logits are recomputed in the backward pass, so those of one slice exist at any time.
    """
    total = 0.0
    hidden, targets = hidden.flatten(0, 1), targets.flatten()
    for h, t in zip(hidden.split(size), targets.split(size), strict=True):
        total = total + checkpoint(summed_loss, model, h, t, use_reentrant=False)
    return total / targets.numel()


def checkpointed(block, x):
    """Run a block that keeps its input only, and runs again in the backward pass."""
    return checkpoint(block, x, use_reentrant=False)


def products(context, op, *args, **kwargs):
    """Keep attention and products; not ``down``, the only one with a narrower result.

    A policy for :func:`torch.utils.checkpoint.create_selective_checkpoint_contexts`.
    """
    keep = op in ATTENTION
    if op in PRODUCTS:
        left, right = args[-2:]
        keep = right.shape[1] >= left.shape[1]
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def keep_products(block, x):
    """Run a block of which only :func:`products` are kept."""
    contexts = partial(create_selective_checkpoint_contexts, products)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def keep_attention(block, x):
    """Run a block of which only the attention's result is kept."""
    contexts = partial(create_selective_checkpoint_contexts, ATTENTION)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


class InBackward:
    """Fused AdamW that steps each parameter as soon as its gradient is there.

    Parameters
    ----------
    parameters : iterable of Parameter
        What to train.
    lr : float
        The learning rate.
    """

    def __init__(self, parameters, lr):
        self.optimizers = {p: torch.optim.AdamW([p], lr=lr, fused=True) for p in parameters}
        update = weakref.WeakMethod(self.update)  # a cycle through a hook is never freed
        for p in self.optimizers:
            p.register_post_accumulate_grad_hook(lambda p: update()(p))

    def update(self, p):
        """Step and forget the gradient of one parameter."""
        self.optimizers[p].step()
        self.optimizers[p].zero_grad()

    def step(self):  # has happened
        """Do nothing: every parameter has been updated."""
        pass

    zero_grad = step
