"""fast_step.py: a training step with the settings that cost nothing."""

import torch
from torch import nn
from torch.nn import functional as F

cuda, channels_last = torch.cuda.is_available(), torch.channels_last
device, count = ("cuda", 256) if cuda else ("cpu", 4)
half = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
torch.backends.cudnn.benchmark = True  # before the first convolution, if shapes repeat
torch.set_float32_matmul_precision("high")  # TF32 for the products that stay in float32
widths = [(3, 64), (64, 64), (64, 128)]
layers = [nn.Sequential(nn.Conv2d(*w, 3), nn.BatchNorm2d(w[1]), nn.ReLU(True)) for w in widths]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
model = model.to(device, memory_format=channels_last)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
images, labels = torch.randn(count, 3, 32, 32), torch.randint(10, (count,))  # your batch
for _ in range(6):
    x = images.to(device, memory_format=channels_last, non_blocking=True)  # pinned by your loader
    with torch.autocast(device, torch.bfloat16, enabled=half):
        loss = F.cross_entropy(model(x), labels.to(device, non_blocking=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
# .item() waits for the GPU: once, after the loop, not in every step
print(f"{device}, {count} images a step: loss {loss.item():.3f}")
