"""generate.py: tokens from a language model, one after the other, with its cache or without."""

import torch


@torch.no_grad()
def generate(model, tokens, count, cached=False, temperature=0.8, top=50, end=None, generator=None):
    """Tokens, (batch, time) of one length, and up to `count` more, drawn from the likeliest `top`.

    model(tokens) returns logits after each of them, (batch, time, vocabulary), alone or in an
    object as `logits`. One that keeps keys and values by `start` is called, with cached=True, as
    model(new tokens, start=tokens seen before); start=0 begins anew. Temperature 0 takes the
    likeliest. A row that drew `end` goes on with it. All must fit the model's positions. Call
    eval() on the model, and on what wraps it.
    """
    if getattr(model, "training", False):
        raise ValueError("call model.eval() first: dropout would change every answer")
    if getattr(tokens, "ndim", 0) != 2 or 0 in tokens.shape or min(count, top, temperature + 1) < 1:
        raise ValueError("give (batch, time) tokens of one length, and 1 or more for count and top")
    seen, ended = 0, torch.zeros(len(tokens), 1, dtype=torch.bool, device=tokens.device)
    for _ in range(count):
        output = model(tokens[:, seen:], start=seen) if cached else model(tokens)
        logits = getattr(output, "logits", output)[:, -1].float()
        best = logits.topk(min(top, logits.shape[-1]) if temperature else 1)
        chances = (best.values / (temperature or 1)).softmax(-1)
        new = best.indices.gather(1, torch.multinomial(chances, 1, generator=generator))
        if end is not None:
            new = torch.where(ended, end, new)
            ended |= new == end
        tokens, seen = torch.cat((tokens, new), 1), tokens.shape[1]
        if end is not None and ended.all():  # which waits for the GPU
            break
    return tokens


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.Linear(64, 256)).to(device)
    print(generate(model.eval(), torch.tensor([list(b"def")], device=device), count=5).shape)
