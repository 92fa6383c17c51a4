"""jpegs.py: JPEG files as batches to train on: workers crop bytes, the GPU makes floats of them."""

import os

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop


class Jpegs(torch.utils.data.Dataset):
    """Random crops, bytes (3, side, side), and classes, of [(path, class number), ...].

    That is what torchvision's ``ImageFolder(folder).samples`` holds. Gray and CMYK become RGB,
    transparency is dropped, more than 8 bits clipped, EXIF's turning ignored; truncated: OSError.
    """

    def __init__(self, samples, side=224):
        # One array, which only forked workers share; paths in it are bytes, as on the disk.
        self.files = np.rec.array([(os.fsencode(p), y) for p, y in samples], names="path,label")
        self.crop = Compose([RandomResizedCrop(side), RandomHorizontalFlip(), PILToTensor()])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return self.crop(Image.open(self.files.path[i]).convert("RGB")), self.files.label[i]


def jpeg_loader(data, size, workers):
    """Only full batches (none of fewer files), shuffled; of several ranks each gets all files.

    Seed each rank differently before it begins an epoch, or all get the same batches.
    """
    kw = {"num_workers": workers, "persistent_workers": workers > 0, "drop_last": True}
    return torch.utils.data.DataLoader(data, size, True, pin_memory=torch.cuda.is_available(), **kw)


def floats(batches, device, mean=(124, 116, 104), deviation=(58, 57, 57)):
    """An epoch, float32; constants on bytes' scale, 0 to 255."""
    mean, deviation = torch.tensor([[*mean], [*deviation]], device=device).float()[..., None, None]
    for images, labels in batches:
        x = images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        yield (x - mean).div_(deviation), labels.to(device, non_blocking=True)


if __name__ == "__main__":
    Image.new("RGB", (500, 375), "teal").save("photo.jpg")  # yours, and workers=8
    batches = jpeg_loader(Jpegs([("photo.jpg", k) for k in range(8)]), size=4, workers=0)
    print(*next(floats(batches, "cuda" if torch.cuda.is_available() else "cpu"))[0].shape)
