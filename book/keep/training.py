"""training.py: a training loop with validation, and a guard."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def train_once(model, batches, optimizer, device):
    model.train()
    total = torch.zeros((), device=device)
    for x, y in batches:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)  # of logits: no softmax before
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(y)  # stays on the device: nobody waits
    return total.item() / len(batches.dataset)


@torch.inference_mode()
def accuracy(model, batches, device):
    model.eval()
    right = [model(x.to(device)).argmax(1) == y.to(device) for x, y in batches]
    return torch.cat(right).float().mean().item()


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, model = torch.randn(2500, 20), torch.nn.Linear(20, 2).to(device)  # your data and model
train, test = (TensorDataset(rows, (rows.sum(1) > 0).long()) for rows in x.split(2000))
batches = DataLoader(train, batch_size=96, shuffle=True)
loss = train_once(model, batches, torch.optim.Adam(model.parameters(), lr=0.1), device)
print(f"mean loss {loss:.1f}, test: {accuracy(model, DataLoader(test, 100), device):.0%} right")
