"""Capture a step that does one doubtful thing, and print as JSON what came of it.

    python graph_cases.py item

Each case runs in a process of its own: an error during a capture can leave the process unusable.
"""

import argparse
import contextlib
import json
import threading

import torch
from torch import nn

CUDA = "cuda"
OPTIONS = {}  # for torch.cuda.graph
WARMUP = [3]


class Net:
    """A small network with what its training step needs."""

    def __init__(self, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(CUDA)
        self.optimizer = torch.optim.Adam(self.model.parameters(), **options)
        self.x = torch.randn(32, 64, device=CUDA)

    def loss(self):
        self.optimizer.zero_grad()
        return self.model(self.x).square().mean()

    def step(self):
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss


def good():
    return Net(capturable=True).step


def item():
    net = Net(capturable=True)
    return lambda: net.step().item()


def mask():
    x = torch.randn(1000, device=CUDA)
    return lambda: x[x > 0].sum()


def pageable():
    x, host = torch.zeros(1000, device=CUDA), torch.ones(1000)
    return lambda: x.copy_(host)


def pinned():
    x, host = torch.zeros(1000, device=CUDA), torch.ones(1000, pin_memory=True)
    return lambda: x.copy_(host, non_blocking=True)


def literal():
    return lambda: torch.tensor([1.0, 2.0], device=CUDA)


def synchronize():
    x = torch.zeros(1000, device=CUDA)
    return lambda: (x.add_(1), torch.cuda.synchronize())


def plain_adam():
    return Net().step


def scaler(**options):
    net = Net(capturable=True, **options)
    scale = torch.amp.GradScaler(CUDA)

    def step():
        with torch.autocast(CUDA, torch.float16):
            loss = net.loss()
        scale.scale(loss).backward()
        scale.step(net.optimizer)
        scale.update()

    return step


def scaler_fused():
    return scaler(fused=True)


def clip():
    net = Net(capturable=True)

    def step():
        net.loss().backward()
        nn.utils.clip_grad_norm_(net.model.parameters(), 1.0)
        net.optimizer.step()

    return step


def dropout():
    x = torch.ones(1000, device=CUDA)
    return lambda: nn.functional.dropout(x)


def own_generator():
    generator = torch.Generator(CUDA)
    return lambda: torch.randn(1000, device=CUDA, generator=generator)


def seed():
    return lambda: (torch.manual_seed(1), torch.randn(1000, device=CUDA))


def fork(joined=False):
    x, side = torch.zeros(1000, device=CUDA), torch.cuda.Stream()

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
        if joined:
            torch.cuda.current_stream().wait_stream(side)

    return step


def fork_and_join():
    return fork(joined=True)


def other_thread():
    x = torch.zeros(1000, device=CUDA)

    def step():
        x.add_(1)
        if torch.cuda.is_current_stream_capturing():
            thread = threading.Thread(target=busy_thread)
            thread.start()
            thread.join()

    return step


def busy_thread():
    """What a thread that pins batches, or another model's thread, does meanwhile."""
    with contextlib.suppress(RuntimeError):  # its own error does not matter here
        torch.empty(64 * 2**20, dtype=torch.uint8, device=CUDA)


def other_thread_local():
    OPTIONS["capture_error_mode"] = "thread_local"
    return other_thread()


def no_warmup():
    WARMUP[0] = 0
    return good()


def no_warmup_benchmark():
    WARMUP[0] = 0
    torch.backends.cudnn.benchmark = True
    conv = nn.Conv2d(3, 16, 3).to(CUDA)
    images = torch.randn(8, 3, 32, 32, device=CUDA)
    return lambda: conv(images).sum().backward()


def kept_loss():
    net = Net(capturable=True)
    net.kept = net.loss()  # on the default stream, and its graph of autograd stays alive
    net.kept.backward(retain_graph=True)
    return net.step


def default_stream():
    net = Net(capturable=True)

    def step():
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        net.step()
        graph.capture_end()

    WARMUP[0] = -1
    return step


def graphed_autocast():
    net = Net()
    WARMUP[0] = -1

    def step():
        with torch.autocast(CUDA, torch.bfloat16):
            torch.cuda.make_graphed_callables(net.model, (net.x,))

    return step


CASES = (
    good, item, mask, pageable, pinned, literal, synchronize, plain_adam, scaler, scaler_fused,
    clip, dropout, own_generator, seed, fork, fork_and_join, other_thread, other_thread_local,
    no_warmup, no_warmup_benchmark, kept_loss, default_stream,
    graphed_autocast,
)  # fmt: skip


def capture(step):
    """Warm up, capture, replay."""
    if WARMUP[0] < 0:  # the step does all by itself
        return step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP[0]):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **OPTIONS):
        step()
    graph.replay()
    torch.cuda.synchronize()


def first_line(error):
    """What an error says, without advice and addresses."""
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else ""


def main(name):
    step = {case.__name__: case for case in CASES}[name]()
    found = {"case": name, "error": "", "says": "", "during": "", "after": "works"}
    try:
        capture(step)
    except Exception as error:
        cause = error.__context__  # leaving the capture raises once more: the first one counts
        first = cause if isinstance(cause, Exception) else error
        found |= {"error": type(first).__name__, "says": first_line(first)}
        found["during"] = first_line(error) if first is not error else ""
    try:
        found["after"] = "works" if torch.ones(9, device=CUDA).sum().item() == 9 else "wrong"
    except Exception as error:
        found["after"] = first_line(error)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=[case.__name__ for case in CASES], metavar="CASE",
                        help=", ".join(case.__name__ for case in CASES))  # fmt: skip
    main(parser.parse_args().case)
