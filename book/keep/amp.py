"""amp.py: the training loop in bfloat16."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for _ in range(200):
    x = torch.randn(512, 64, device=device)  # here come your batches
    y = x[:, :10].argmax(1)
    with torch.autocast(device, dtype=torch.bfloat16):  # forward and loss, nothing else
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()  # each operation in the type that its forward chose
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the gradients are float32
    optimizer.step()  # and so are the weights

print(f"on the {device}: loss {loss.item():.2f} after 200 steps")
