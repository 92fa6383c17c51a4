"""How long does the first training step of a compiled transformer take, in a new process?

    python first_step.py whole
    python first_step.py blocks
    python first_step.py eager

`whole` compiles the model in one piece, `blocks` each of its layers, which all share one result.
What is already in the folder that TORCHINDUCTOR_CACHE_DIR names is not compiled again. Printed:
{"start": seconds until the model is on the device, "first": seconds of the first step, "later": of
a later one}.
"""

import argparse
import json
import time

BEGIN = time.perf_counter()

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from utils.models import Transformer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("how", choices=("eager", "blocks", "whole"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--sequences", type=int, default=4)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Transformer(50_304, layers=args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(50_257, (args.sequences, 1024), device=device)
    if args.how == "whole":
        model.compile()
    elif args.how == "blocks":
        for block in model.blocks:
            block.compile()

    def step() -> float:
        """Seconds of a training step."""
        begin = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the GPU
        torch.cuda.synchronize() if device == "cuda" else None
        return time.perf_counter() - begin

    started = time.perf_counter() - BEGIN
    first = step()
    step()
    print(json.dumps({"start": started, "first": first, "later": min(step() for _ in range(3))}))


if __name__ == "__main__":
    main()
