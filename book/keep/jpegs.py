"""jpegs.py: JPEG files as batches to train on: workers crop bytes, the GPU makes floats of them."""

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2


class Jpegs(torch.utils.data.Dataset):
    """Random crops, bytes (3, side, side), and classes, of [(path, class number), ...].

    That is what torchvision's ``ImageFolder(folder).samples`` holds. Transparency is dropped,
    more than 8 bits are clipped, EXIF's turning is ignored; a truncated file raises OSError.
    """

    def __init__(self, samples, side=224):
        # Arrays, which only forked workers share, 4 bytes a character; pass Paths as strings.
        self.paths, self.labels = map(np.array, zip(*samples, strict=True))
        self.crop = v2.Compose([v2.RandomResizedCrop(side), v2.RandomHorizontalFlip()])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")  # gray and CMYK, too
        return v2.functional.pil_to_tensor(self.crop(image)), self.labels[i]


def jpeg_loader(data, size, workers):
    """Only full batches (none of fewer files), shuffled; of several ranks each gets all files."""
    kw = {"num_workers": workers, "persistent_workers": workers > 0, "drop_last": True}
    return torch.utils.data.DataLoader(data, size, True, pin_memory=torch.cuda.is_available(), **kw)


def floats(batches, device, mean=(124, 116, 104), deviation=(58, 57, 57)):
    """An epoch, float32; constants on bytes' scale, 0 to 255 (124.0, ... saves int64 copies)."""
    mean, deviation = (torch.tensor(x, device=device)[:, None, None] for x in (mean, deviation))
    for images, labels in batches:
        x = images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        yield (x - mean) / deviation, labels.to(device, non_blocking=True)


if __name__ == "__main__":
    Image.new("RGB", (500, 375), "teal").save("photo.jpg")  # yours, and workers=8
    batches = jpeg_loader(Jpegs([("photo.jpg", k) for k in range(8)]), size=4, workers=0)
    print(*next(floats(batches, "cuda" if torch.cuda.is_available() else "cpu"))[0].shape)
