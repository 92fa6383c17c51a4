"""train.py: a language model of the Python source of your torch, with every rule of the book.

    python train.py                                                on this machine, one GPU or none
    torchrun --standalone --nproc-per-node=2 train.py              on two: data parallel
    torchrun --standalone --nproc-per-node=4 train.py --shard --tensor 2     sharded, both ways

Reads bytes, predicts the next one; the loss is in bits per byte. Started again, it goes on where
its last checkpoint was; SIGTERM makes it write one first. Needs the other files of this folder.
"""

import argparse
import contextlib
import hashlib
import math
import os
import time
import timeit
from pathlib import Path

import torch
import torch.distributed as dist
from background import Background
from checkpoint import save
from late import Late
from optimizers import optimizers
from prefetch import prefetch
from profile_steps import step_profiler
from repeatable import seed_everything
from resume import resume
from spread import spread
from stop import until_sigterm
from tensor_parallel import tensor_parallel
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.nn import functional as F

SIZES = {  # layers, width, bytes of context, sequences a step, steps, learning rate
    "tiny": (2, 128, 256, 8, 300, 3e-3),  # 0.5M parameters: a minute on two cores of a CPU
    "small": (4, 640, 1024, 64, 2000, 2e-3),  # 20M: a minute on an H200
    "medium": (12, 768, 1024, 64, 10_000, 1e-3),  # 85M, as GPT-2 small
}
HEAD = 64  # numbers of an attention head


# --- model ---------------------------------------------------------------------------------------


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    """Attention over what came before, then two layers for each position."""

    def __init__(self, width):
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (linear(width, width) for _ in range(4))
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x, turns):
        y = self.before_attention(x)
        # (batch, heads, time, numbers of a head); under tensor parallelism, only this rank's heads
        three = self.query, self.key, self.value
        q, k, v = (layer(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in three)
        q, k = (turned(F.rms_norm(x, x.shape[-1:]), turns) for x in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.relu(self.up(self.before_mlp(x))).square())


def turned(x, turns):
    """Rotary positions: each pair of numbers is turned by an angle that grows with its position."""
    cos, sin = turns
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


class Transformer(nn.Module):
    def __init__(self, layers, width, context):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), linear(width, 256)
        angles = torch.outer(torch.arange(context), 1e4 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                last = name.endswith(("out.weight", "down.weight"))  # they add up over the layers
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers if last else 1))

    def forward(self, x, targets=None):
        """Logits of the next byte or, with targets, the loss in bits, summed over them."""
        y, turns = self.embedding(x), self.turns[:, : x.shape[1]]
        for block in self.blocks:
            y = block(y, turns)
        logits = self.head(self.norm(y)).float()
        if targets is None:
            return logits
        nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return nats / math.log(2)


# --- data ----------------------------------------------------------------------------------------


def corpus(folder):
    """All different *.py files below a folder, as bytes: to train on, and 5% held out, by path."""
    parts, seen = {False: bytearray(), True: bytearray()}, set()
    for path in sorted(filter(Path.is_file, Path(folder).rglob("*.py")), key=Path.as_posix):
        text, name = path.read_bytes(), path.relative_to(folder).as_posix()
        if (digest := hashlib.sha256(text).digest()) not in seen:
            seen.add(digest)
            held_out = hashlib.sha256(name.encode()).digest()[0] % 20 == 0
            parts[held_out] += text + bytes(1)  # a zero ends a file: source holds none
    sha = hashlib.sha256(parts[False] + parts[True]).hexdigest()[:12]
    return *(torch.tensor(part, dtype=torch.uint8) for part in parts.values()), sha


class Windows:
    """Bytes and the bytes that follow them, (batch, context) of each, for every step of a run.

    Their order is new each epoch, made of seed and step alone: it is the same on any machine and
    after any restart. Each of several copies of the model takes its part of the batch.
    """

    def __init__(self, data, context, batch, seed, copy=0, copies=1):
        self.data, self.context, self.batch, self.seed = data, context, batch, seed
        self.mine, self.epoch, self.rows = slice(copy, None, copies), None, len(data) // context - 1
        if self.rows < batch:
            raise SystemExit(f"--data: {len(data):,} bytes are too few for {batch} x {context}")

    def __call__(self, step):
        epoch, place = divmod(step, self.rows // self.batch)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(10_000 * self.seed + epoch)
            shift = torch.randint(self.context, (), generator=generator)
            starts = torch.randperm(self.rows, generator=generator) * self.context + shift
            self.epoch, self.starts = epoch, starts.to(self.data.device)
        starts = self.starts[place * self.batch : (place + 1) * self.batch][self.mine]
        places = starts[:, None] + torch.arange(self.context + 1, device=self.data.device)
        rows = self.data[places].long()
        return rows[:, :-1], rows[:, 1:]


# --- checkpoints ---------------------------------------------------------------------------------


def gathered(model, found, run, step):
    """All that a run needs to go on, whole, in rank 0's memory, however the ranks share it."""
    whole = dcp.StateDictOptions(full_state_dict=True, cpu_offload=dist.get_world_size() > 1)
    states = dcp.get_state_dict(model, found, options=whole)
    # What a run is, as names of numbers: `resume` compares names, so it refuses another run's file.
    named = {f"{k} {v}": torch.zeros(()) for k, v in run.items()} | {"step": torch.tensor(step)}
    return {"model": dict(states[0]), "optimizer": dict(states[1]), "run": named}


def restored(path, model, found, run):
    """Go on from the checkpoint at this path of rank 0's disk; return its step, or 0."""
    told = [os.path.exists(path)]
    if dist.get_world_size() > 1:  # other ranks may have another disk
        dist.broadcast_object_list(told)
    if not told[0]:
        return 0
    parts = gathered(model, found, run, step=0)
    if dist.get_rank() == 0:
        try:
            resume(path, **parts)  # into the parts, which nothing uses yet
            told = [int(parts["run"]["step"])]
        except Exception as error:
            told = [f"cannot go on; move the file away to begin anew: {error}"]
    dist.broadcast_object_list(told)
    if isinstance(told[0], str):
        raise SystemExit(told[0])
    for group in (g for g in parts["optimizer"].get("param_groups", ()) if "fused" in g):
        group["fused"] = found[0].defaults["fused"]  # AdamW's, of this run
    how = dcp.StateDictOptions(full_state_dict=True, broadcast_from_rank0=dist.get_world_size() > 1)
    dcp.set_model_state_dict(model, parts["model"], options=how)
    dcp.set_optimizer_state_dict(model, found, parts["optimizer"], options=how)
    return told[0]


# --- training ------------------------------------------------------------------------------------


def options():
    parser = argparse.ArgumentParser(description=__doc__.split(": ", 1)[1].split("\n")[0])
    flag, switch = parser.add_argument, argparse.BooleanOptionalAction
    cuda, half = torch.cuda.is_available(), torch.cuda.is_bf16_supported(False)
    flag("--size", choices=SIZES, default="small" if cuda else "tiny", help="of the model")
    flag("--steps", type=int, help="in all, those before a restart included")
    flag("--batch", type=int, help="sequences of a step, over all ranks and pieces")
    flag("--rate", type=float, help="the highest learning rate")
    flag("--seed", type=int, default=0)
    flag("--data", type=Path, default=Path(torch.__file__).parent, help="a folder of *.py files")
    flag("--checkpoint", type=Path, default=Path("train.pt"), help="written, and gone on with")
    flag("--clip", type=float, default=1.0, metavar="NORM", help="the longest gradient of a step")
    flag("--every", type=int, default=100, help="steps between checkpoints, and validations")
    flag("--metrics", type=Path, help="a file of a line of JSON a step; of two, the last")
    flag("--profile", metavar="FOLDER", help="that gets a trace of three steps")
    flag("--shard", action="store_true", help="FSDP2: the parameters are spread over the ranks")
    flag("--tensor", type=int, default=1, metavar="RANKS", help="that share each product")
    # The rules of the book, each of which can be left out to see what it is worth.
    feeding = "data on the device, batches sent ahead, or each when its turn comes"
    flag("--feeding", choices=("device", "prefetch", "plain"), default="device", help=feeding)
    flag("--precision", choices=("bf16", "tf32", "fp32"), default="bf16" if half else "fp32")
    flag("--compile", action=switch, help="default: on a GPU, without --tensor")
    flag("--fused", action=switch, default=True, help="one kernel for the optimizer's step")
    flag("--muon", action=switch, default=False, help="for the matrices of the blocks, not AdamW")
    flag("--pieces", type=int, default=1, help="that a rank's batch is cut into, to save memory")
    flag("--wait", action=switch, default=False, help="for each loss, as loss.item() does")
    flag("--repeatable", action=switch, default=False, help="on a GPU, too, to the last bit")
    settings = parser.parse_args()
    _, width, context, batch, steps, high = SIZES[settings.size]
    compiled = cuda and settings.tensor == 1 and os.name == "posix"  # Triton is of Linux
    parser.set_defaults(batch=batch, steps=steps, rate=high, compile=compiled)
    settings = parser.parse_args()  # again, with the usual numbers of this size
    counts = settings.steps, settings.batch, settings.every, settings.pieces, settings.tensor
    if min(counts) < 1 or not settings.rate > 0 < settings.clip or not 0 <= settings.seed < 2**32:
        parser.error("--seed is from 0 to 2**32 - 1, and all other numbers are above 0")
    ranks, heads = int(os.environ.get("WORLD_SIZE", 1)), width // HEAD
    settings.copies, folder = ranks // settings.tensor, settings.checkpoint.absolute().parent
    if os.environ.get("RANK", "0") == "0" and not os.access(folder, os.W_OK):
        parser.error(f"--checkpoint: cannot write into {folder}")
    if ranks % settings.tensor or heads % settings.tensor or context % settings.tensor:
        parser.error(f"--tensor must divide {ranks} ranks, {heads} heads and {context} bytes")
    if settings.muon and (settings.shard or settings.tensor > 1):
        parser.error("--muon works on whole matrices: not with --shard, nor with --tensor")
    if settings.batch % (settings.copies * settings.pieces):
        parser.error(f"--batch must be a multiple of {settings.copies * settings.pieces}")
    # With torch 2.15, a compiled block under tensor parallelism gave other losses, and no error.
    if settings.tensor > 1 and (settings.compile or (settings.copies > 1 and not settings.shard)):
        parser.error("--tensor goes without --compile and, on a part of the ranks, with --shard")
    return settings


def rate(step, steps):
    """The part of the highest rate: up along a line, and down along another, nearly to zero."""
    return min(step / max(20, 0.05 * steps), 1) * (1 - step / (steps + 1))


def product_rate(device, dtype):
    """FLOP/s of a large product on this device: what MFU is a part of."""
    n = 1024 if device.type == "cpu" else 8192
    # Of random numbers: of ones, an H200 makes 11% more, for fewer of its bits change.
    a = torch.randn(n, n, device=device, dtype=dtype)
    seconds = timeit.repeat(lambda: (a @ a)[0, 0].item(), number=1)  # five, each waited for
    return 2 * n**3 / min(seconds)


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def train(settings, device):
    ranks, settings.kept = dist.get_world_size(), "its last checkpoint"  # of which Ctrl-C tells
    layers, width, context, usual, *_ = SIZES[settings.size]
    half, copies, pieces = settings.precision == "bf16", settings.copies, settings.pieces
    torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
    seed_everything(settings.seed, deterministic=settings.repeatable)
    data, held_out, sha = corpus(settings.data)
    data = data.to(device if settings.feeding == "device" else "cpu")
    net = Transformer(layers, width, context).to(device)
    for part in (net.blocks if settings.shard else [net]) if settings.compile else ():
        part.compile()
    # A mesh of Apple's GPUs does not exist; that of one process is only asked for its sizes.
    home, shape = "cpu" if device.type == "mps" else device.type, (copies, settings.tensor)
    mesh = dist.init_device_mesh(home, shape, mesh_dim_names=("data", "tensor"))
    if settings.tensor > 1:
        tensor_parallel(net, mesh["tensor"])
    model = spread(net, mesh["data"], settings.shard, half and settings.shard)
    copy, summed = mesh["data"].get_local_rank(), dist.all_reduce if ranks > 1 else lambda _: None
    windows = Windows(data, context, settings.batch, settings.seed, copy, copies)
    # The same windows, whatever the batch of this run; each copy gets as many, or some would wait.
    test = Windows(held_out.to(device), context, usual + -usual % copies, 0, copy, copies)
    weights = list(net.parameters())
    found = optimizers(net, net.blocks, settings.rate, settings.muon, settings.fused or None)
    run = {name: getattr(settings, name) for name in ("size", "batch", "seed")} | {"data": sha}
    begin = restored(settings.checkpoint, model, found, run)
    products = sum(p.numel() for p in (*net.blocks.parameters(), net.head.weight))
    flops = 6 * products + 6 * layers * context * width  # a byte; half the attention is masked
    peak = ranks * product_rate(device, torch.bfloat16 if half else torch.float32)
    say(f"{sum(p.numel() for p in weights):,} parameters on {ranks} x {device.type}")
    say(f"{len(data):,} bytes to train on, {len(held_out):,} held out, SHA {sha}")
    say(f"going on after step {begin}, from {settings.checkpoint}" if begin else "from the start")

    def losses(batch):
        """The loss of each piece of a batch, in bits per byte of all the copies' batch."""
        for piece, (x, y) in enumerate(zip(*(t.chunk(pieces) for t in batch), strict=True), 1):
            if settings.shard:  # gradients travel once, after the last piece
                net.set_requires_gradient_sync(piece == pieces)
            elif copies > 1:
                model.require_backward_grad_sync = piece == pieces
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                bits = model(x.to(device), y.to(device))
            yield bits / (settings.batch * context)  # by all targets, of all pieces and copies

    @torch.no_grad()
    def validation():
        count = max(1, min(16 * usual, test.rows) // test.batch)
        total = sum(sum(losses(test(step))) for step in range(count))
        summed(total)
        return total.item() / settings.tensor / count * settings.batch / test.batch

    def checked(step, bits, norm, stop):
        """Note what a step says, if it is sound; return its loss, and whether to stop."""
        if not math.isfinite(bits + norm):
            again = f"with a lower --rate it can go on after {settings.kept}"
            raise SystemExit(f"step {step}: loss {bits}, gradient {norm}; {again}")
        if settings.metrics and dist.get_rank() == 0:
            with open(settings.metrics, "a") as file:
                print(f'{{"step": {step}, "bits": {bits}, "norm": {norm}}}', file=file)
        return bits, stop > 0

    background, late, stop, saved = Background(save), Late(), False, begin
    start, since, settings.kept = time.perf_counter(), begin, f"step {begin}"
    feed = map(windows, range(begin, settings.steps))
    feed = prefetch(feed, device) if settings.feeding == "prefetch" else feed
    seen = step_profiler(settings.profile) if settings.profile else contextlib.nullcontext()
    with seen as profiler, until_sigterm() as asked:
        for done, batch in enumerate(feed, begin + 1):
            for group in (group for each in found for group in each.param_groups):
                group["lr"] = settings.rate * rate(done, settings.steps)
            numbers = torch.zeros(3, device=device)  # loss, norm of the gradient, whether to stop
            for bits in losses(batch):
                (bits * copies).backward()  # the copies' gradients are averaged
                numbers[0] += bits.detach() / settings.tensor
            norm = nn.utils.clip_grad_norm_(weights, settings.clip)
            for optimizer in found:
                optimizer.step()
                optimizer.zero_grad()
            numbers[1] = getattr(norm, "full_tensor", norm.clone)() / ranks
            numbers[2].fill_(asked.is_set())
            summed(numbers)  # once a step: then all know the same, and stop at the same step
            before = late(numbers)  # of the last step: nobody waits
            if settings.wait:  # as loss.item() does
                late.last()
            if done > saved + 1:
                stop = checked(done - 1, *before)[1]
            if stop or done % settings.every == 0 or done == settings.steps:
                (bits, stop), saved = checked(done, *late.last()), done
                seconds = (time.perf_counter() - start) / max(1, done - since)
                pace, left = settings.batch * context / seconds, seconds * (settings.steps - done)
                parts = gathered(model, found, run, done)
                if dist.get_rank() == 0:
                    background.save(settings.checkpoint, **parts)
                settings.kept = f"step {done}"  # even if interrupted: a thread writes it
                text = f"step {done} of {settings.steps}: {bits:.3f} bits per byte, held out "
                text += f"{validation():.3f}, {pace / 1e3:,.0f} kB/s, MFU {pace * flops / peak:.0%}"
                gib = torch.cuda.max_memory_allocated() / 2**30  # 0 without CUDA
                say(f"{text}, {gib:.1f} GiB, {left // 60:.0f}:{left % 60:02.0f} left")
            if done in (saved, begin + 3):  # saving is no step's price, nor is compiling
                start, since = time.perf_counter(), done
            if profiler:
                profiler.step()
            if stop:
                break
        background.wait()  # a second SIGTERM does not end this
    say(f"{'stopped' if saved < settings.steps else 'done'}, saved in {settings.checkpoint}")


def main():
    settings = options()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if device.type != "cpu":
        device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", 0)))
        torch.accelerator.set_device_index(device.index)  # one process, one GPU
    solo = {} if "RANK" in os.environ else {"rank": 0, "world_size": 1, "store": dist.HashStore()}
    backend = "gloo" if device.type == "cuda" and not dist.is_nccl_available() else None
    dist.init_process_group(backend, **solo)  # None: NCCL between GPUs, gloo between CPUs
    try:
        train(settings, device)
    except KeyboardInterrupt:
        say(f"interrupted: it can go on after {settings.kept}")
        raise SystemExit(130) from None
    except torch.OutOfMemoryError as error:
        raise SystemExit(f"the GPU is full, more --pieces need less: {error!s:.99}") from None
    except OSError as error:  # of a disk that is full, say
        raise SystemExit(f"{error}") from None
    dist.destroy_process_group()  # not after an error: other ranks may still wait


if __name__ == "__main__":
    main()
