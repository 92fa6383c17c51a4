"""A loop with the habits of nanoGPT's train.py, written anew around this book's model and data.

    python like_nanogpt.py --size small --seed 0 --rate 2e-3 --checkpoint like.pt

Its habits: bytes in a memory-mapped file, random windows put together on the CPU, pinned and sent
without waiting; the next batch is fetched while the GPU works; bfloat16 under autocast, a disabled
gradient scaler, torch.compile, fused AdamW, clipping at 1, `loss.item()` every tenth step; now and
then validation, and a checkpoint of model and optimizer. The schedule of the rate is train.py's.
Takes those of its options that chapter 7.2 gives, and prints the same line.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "keep"))
import train


def main():
    parser = argparse.ArgumentParser()
    for flag, kind in (("--size", str), ("--seed", int), ("--checkpoint", str), ("--rate", float)):
        parser.add_argument(flag, type=kind, required=True)
    parser.add_argument("--steps", type=int, help="in all; default: the size's")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--metrics", type=Path, help="a file of a line of JSON each tenth step")
    settings = parser.parse_args()
    layers, width, context, batch, steps, _ = train.SIZES[settings.size]
    steps = settings.steps or steps
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    training, held_out, sha = train.corpus(Path(torch.__file__).parent)
    file = Path(settings.checkpoint).with_name("bytes.bin")
    training.numpy().tofile(file)
    data = np.memmap(file, dtype=np.uint8, mode="r")
    net = train.Transformer(layers, width, context).to("cuda")
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    vectors = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.95), fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    model, half = torch.compile(net), torch.autocast("cuda", torch.bfloat16)
    test = train.Windows(held_out.to("cuda"), context, batch, 0)

    def get_batch():
        starts = torch.randint(len(data) - context, (batch,))
        both = []
        for ahead in (0, 1):
            rows = [data[i + ahead : i + ahead + context].astype(np.int64) for i in starts.tolist()]
            both.append(torch.stack([torch.from_numpy(row) for row in rows]))
        return [t.pin_memory().to("cuda", non_blocking=True) for t in both]

    @torch.no_grad()
    def validation():
        total, count = 0.0, min(16, test.rows // batch)
        for step in range(count):
            with half:
                total += model(*test(step)).item()
        return total / (count * batch * context)

    print(f"{len(training):,} bytes to train on, {len(held_out):,} held out, SHA {sha}")
    x, y = get_batch()
    start, since = time.perf_counter(), 0
    for done in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * train.rate(done, steps)
        with half:
            loss = model(x, y) / (batch * context)
        x, y = get_batch()  # while the GPU computes
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if done % 10 == 0:
            if not math.isfinite(bits := loss.item()):
                raise SystemExit("the loss is not finite")
            if settings.metrics:
                with open(settings.metrics, "a") as file:
                    print(f'{{"step": {done}, "bits": {bits}}}', file=file)
        if done % settings.every == 0:
            pace = batch * context * (done - since) / (time.perf_counter() - start)
            text = f"step {done} of {steps}: {bits:.3f} bits per byte, held out {validation():.3f}"
            gib = torch.cuda.max_memory_allocated() / 2**30
            print(f"{text}, {pace / 1e3:,.0f} kB/s, MFU -, {gib:.1f} GiB, 0:00 left", flush=True)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"run": {"step": torch.tensor(done)}}, settings.checkpoint)
            start, since = time.perf_counter(), done
        if done == 3:
            torch.cuda.synchronize()
            start, since = time.perf_counter(), done


if __name__ == "__main__":
    main()
