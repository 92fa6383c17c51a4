"""The networks that several chapters train. Pages show them from this source."""

from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function, schedule


class MnistCNN(nn.Module):
    """The small CNN of the popular MNIST tutorials: two convolutions, two linear layers.

    Input (n, 1, 28, 28), output (n, 10) logits; 1,199,882 parameters, nearly all of them in the
    first linear layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv1(images))  # (n, 32, 26, 26)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # (n, 64, 12, 12)
        x = F.relu(self.fc1(x.flatten(1)))  # (n, 128)
        return self.fc2(x)  # logits: cross_entropy applies the softmax


class Block(nn.Module):
    """One layer of :class:`Transformer`: causal attention, then a two-layer MLP, each added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (n, heads, time, width / heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(n, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A decoder like GPT-2 small; 124,439,808 parameters with the default sizes.

    Input (n, time) token numbers, output (n, time, vocabulary) logits. The embedding and the last
    layer share one matrix, as in GPT-2 (https://github.com/openai/gpt-2); dropout is left out.
    """

    def __init__(
        self,
        vocabulary: int = 50_257,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        context: int = 1024,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def features(self, tokens: Tensor) -> Tensor:
        """What the last layer reads: (n, time, width)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.features(tokens))


# No type hints: records keep a hash of its text, and a hint would make them stale.
class InBfloat16(nn.Module):
    """A network under autocast, wherever and in whichever thread it is called.

    Autocast holds for one thread; ``nn.DataParallel`` calls its replicas in others. Input: what the
    network reads, a tensor. Output: what it gives, as float32.
    """

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        with torch.autocast(images.device.type, torch.bfloat16):
            return self.network(images).float()


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters of ``model``."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


# --- trainings that fill a GPU, with what they need ---------------------------------------------
# Records keep a hash of their text: no type hints here either.


def build(name):
    """Return a network that chapter 5.1 trains, and the shape of one input.

    Parameters
    ----------
    name : str
        ``"MLP"``, ``"big MLP"`` (eight layers of 4096 x 4096), or any other for ResNet-50 in
        bfloat16 and channels_last.
    """
    if name == "MLP":
        layers = [nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)]
        return nn.Sequential(*layers), (1, 28, 28)
    if name == "big MLP":
        layers = (layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.ReLU()))
        return nn.Sequential(*layers), (4096,)
    from torchvision.models import resnet50

    return InBfloat16(resnet50().to(memory_format=torch.channels_last)), (3, 224, 224)


def images_for(memory):
    """Return how many images a step keep a GPU with so many bytes of memory busy, and fit easily.

    >>> images_for(16 * 2**30)
    136
    """
    return min(768, int(memory / 120e6) // 8 * 8)


def resnet():
    """Return ResNet-18, its optimizer, and images and labels that fill the GPU."""
    from torchvision.models import resnet18

    torch.manual_seed(0)
    count = images_for(torch.cuda.get_device_properties(0).total_memory)
    model = resnet18().to("cuda", memory_format=torch.channels_last)
    images = torch.randn(count, 3, 224, 224, device="cuda")
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (count,), device="cuda")
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), images, labels


def resnet_step(model, optimizer, images, labels):
    """Make a step under autocast that never waits for the GPU; return the loss."""
    optimizer.zero_grad()
    with record_function("forward"), torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    with record_function("backward"):
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
    return loss.detach()


# --- steps of the MNIST network and others under the profiler: part 6 ----------------------------
# Records keep a hash of their text: no type hints here either.

CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA


def fresh(**options):
    """Return a new :class:`MnistCNN` on the GPU, and Adam for it, with these options."""
    torch.manual_seed(0)
    model = MnistCNN().to("cuda")
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, **options)


def profile_steps(step, steps=3, **options):
    """Return a profile of ``steps`` calls of ``step()`` on the GPU, after two of warm-up.

    Parameters
    ----------
    options : dict
        For :class:`torch.profiler.profile`, such as ``with_stack=True``.
    """
    plan = schedule(wait=0, warmup=2, active=steps, repeat=1)
    with profile(activities=[CPU, CUDA], schedule=plan, **options) as profiler:
        for i in range(2 + steps):
            step()
            if i == 1:
                torch.cuda.synchronize()  # the trace begins with an empty queue
            profiler.step()
    return profiler


def row_kind(row):
    """Return what a row of the profiler's table stands for: a name may have rows of two kinds."""
    if row.device_type != DeviceType.CPU:
        return "range on the GPU" if row.is_user_annotation else "GPU work"
    if row.is_user_annotation:
        return "range"
    return "CUDA call" if row.key.startswith("cu") else "operator"


def digits(number, count=4):
    """Return ``number`` with so many significant digits.

    >>> digits(123456.7)
    123500.0
    """
    return float(f"{number:.{count}g}")


# --- a training step in the formats of part 3 ----------------------------------------------------
# Records keep a hash of their text: no type hints here either.


@contextmanager
def float32_matmul(precision):
    """Set the precision of float32 matrix products for a block.

    Parameters
    ----------
    precision : str
        As :func:`torch.set_float32_matmul_precision` takes it: ``"highest"``, ``"high"`` (TF32).
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def mlp(width):
    """Return four linear layers of this width, each with a ReLU: (n, width) to the same."""
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())))


def loss_of(model, x, y, dtype):
    """Return the cross entropy under autocast to ``dtype``; None switches it off."""
    with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def training_step(model, optimizer, x, y, dtype):
    """Return a function that makes one training step on a GPU; fp16 comes with a scaler.

    Parameters
    ----------
    dtype : torch.dtype or None
        Of autocast: see :func:`loss_of`.
    """
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)

    def step():
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x, y, dtype)).backward()
        scaler.step(optimizer)
        scaler.update()

    return step
