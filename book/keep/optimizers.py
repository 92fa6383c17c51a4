"""optimizers.py: Muon (torch 2.9) for inner matrices, AdamW for all else, at one learning rate."""

from torch import cuda, nn, optim


def optimizers(model, inside, rate, muon=True, fused=None):
    """One or two optimizers of a model's parameters: step them all, and schedule all their groups.

    Muon takes the 2-D weights of the module `inside`, such as a transformer's blocks: there each
    step is made about as long in all directions. Embeddings, vectors, and all outside are
    AdamW's: keep a head and a table of positions outside, and split a weight that packs several
    (nn.MultiheadAttention's queries, keys and values, nn.LSTM's gates), which Muon takes as one
    matrix. `fused` is AdamW's; None is torch's choice.
    With a GradScaler one of the two may skip a step that the other takes: use bfloat16.
    """
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise ValueError("all weights of the model are frozen: there is nothing to train")
    if not set(inside.parameters()) <= set(model.parameters()):
        raise ValueError("`inside` is no part of the model")
    rows = {m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    matrices = {p for p in inside.parameters() if p.requires_grad and p.dim() == 2 and muon} - rows
    if any(hasattr(p, "full_tensor") for p in matrices):
        raise ValueError("Muon works on whole matrices, and these are sharded: use muon=False")
    decayed = [p for p in weights if p.dim() > 1 and p not in matrices]
    lots = (decayed, 0.1), ([p for p in weights if p.dim() < 2], 0.0)
    groups = [{"params": lot, "weight_decay": decay} for lot, decay in lots if lot]
    found = [optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=fused)] if groups else []
    if matrices:  # in the model's order; with steps scaled to be as long as AdamW's
        ordered, scale = [p for p in weights if p in matrices], "match_rms_adamw"
        found += [optim.Muon(ordered, lr=rate, weight_decay=0.1, adjust_lr_fn=scale)]
    return found


if __name__ == "__main__":
    device = "cuda" if cuda.is_available() else "cpu"
    # An attention's: of queries, keys, values and output, each a layer of its own.
    inside = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
    model = nn.ModuleList([nn.Embedding(256, 64), inside, nn.Linear(64, 256)])
    for optimizer in optimizers(model.to(device), inside, rate=2e-3):
        print(type(optimizer).__name__, sum(len(g["params"]) for g in optimizer.param_groups))
