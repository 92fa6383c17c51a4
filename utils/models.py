"""The networks that several chapters train. Pages show them from this source."""

from torch import Tensor, nn
from torch.nn import functional as F


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


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters of ``model``."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def parameter_bytes(model: nn.Module) -> int:
    """Return the bytes of the parameters and buffers of ``model``, tied ones counted once."""
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
