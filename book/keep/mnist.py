"""mnist.py: the MNIST tutorial, fast and resumable."""

import os
import socket
import time
import zipfile

import torch
from torch import nn
from torchvision.datasets import MNIST

device = "cuda" if torch.cuda.is_available() else "cpu"
EPOCHS = int(os.environ.get("EPOCHS", 10 if device == "cuda" else 1))
DATA, FILE = os.environ.get("DATA_ROOT", "data"), os.environ.get("CHECKPOINT") or "mnist.pt"
BATCH, RATE = (500, 5**0.5 * 1e-3) if device == "cuda" else (100, 1e-3)
if not os.path.isdir(os.path.dirname(FILE) or "."):  # now, not after an epoch
    raise SystemExit(f"CHECKPOINT={FILE}: there is no such folder, make it or name another")
socket.setdefaulttimeout(10)  # seconds; without it a silent server stops the download for ever


def load(what="MNIST"):  # the name of the data, the training and test sets on the device
    try:
        sets = [(s.data, s.targets) for s in (MNIST(DATA, download=True), MNIST(DATA, False))]
    except Exception as e:  # no network, a cut file: torchvision raises many kinds
        print(f"NOT MNIST but made-up images: none whole in {DATA}, no download. Proxy? {e!r:.70}")
        what, sets = "made-up images", [torch.arange(n) % 10 for n in (1000, 500)]
        sets = [(127 * (torch.rand(len(y), 28, 28) + torch.eye(28)[2 * y, None]), y) for y in sets]
    return what, *(((x[:, None].to(device) - 33.3) / 78.6, y.to(device)) for x, y in sets)


def resume():  # how many epochs the checkpoint has behind it
    try:
        broken = zipfile.ZipFile(FILE).testzip()
        saved = torch.load(FILE, map_location="cpu", weights_only=True)
        if broken or (saved["what"], saved["network"]) != (what, str(model)):
            raise ValueError(f"damaged: {broken}; trained on {saved['what']}: {saved['network']}")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return saved["done"]
    except Exception as error:
        raise SystemExit(f"cannot resume {FILE} on {what}, change one: {error!r:.95}") from None


@torch.inference_mode()
def accuracy():
    model.eval()
    logits = torch.cat([model(part) for part in x_test.split(1000)])
    return (logits.argmax(1) == y_test).float().mean().item()


torch.manual_seed(0)
what, (x, y), (x_test, y_test) = load()
conv = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
linear = [nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10)]
model = nn.Sequential(*conv, *linear).to(device)
optimizer = torch.optim.Adam(model.parameters(), fused=True)
print(f"{what} on {device}, {EPOCHS} epochs in all", flush=True)
for epoch in range(resume() if os.path.exists(FILE) else 0, EPOCHS):
    torch.manual_seed(epoch)  # a resumed epoch takes the same batches
    model.train()
    start, total = time.perf_counter(), torch.zeros((), device=device)
    optimizer.param_groups[0]["lr"] = RATE * (1 - epoch / EPOCHS)
    for rows in torch.randperm(len(x)).to(device).split(BATCH):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()  # not loss.item(), which would wait for the GPU
    loss, seconds = total.item() * BATCH / len(x), time.perf_counter() - start
    print(f"epoch {epoch + 1}: {seconds:.2f} s, loss {loss:.4f}, accuracy {accuracy():.2%}")
    state = {"what": what, "network": str(model), "done": epoch + 1, "model": model.state_dict()}
    torch.save(state | {"optimizer": optimizer.state_dict()}, FILE + ".partial")
    os.replace(FILE + ".partial", FILE)  # whole or not at all
print(f"{what}: {accuracy():.2%} of {len(y_test):,} test images right; saved in {FILE}")
