"""MONAI: a small UNet under stock DDP, a CacheDataset with transforms, its DataLoader, DistributedSampler and Dice.

monai_program.py FOLDER [line]: under torchrun; with `line` over ringdp.
"""

from __future__ import annotations

from typing import Any

import launched
import numpy as np
import torch
import torch.distributed as dist
from monai.data import CacheDataset, DataLoader, DistributedSampler
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureTyped, RandFlipd, ScaleIntensityd
from monai.utils import set_determinism
from torch.nn.parallel import DistributedDataParallel


def pictures(count: int) -> list[dict[str, np.ndarray]]:
    """A bright square on noise, and where it is."""
    random = np.random.default_rng(3)
    found = []
    for number in range(count):
        label = np.zeros((1, 16, 16), np.float32)
        label[:, number % 8 : number % 8 + 6, 4:12] = 1
        found.append({"image": label + random.normal(0, 0.3, label.shape).astype(np.float32), "label": label})
    return found


def train(folder: str, way: str = "") -> dict[str, Any]:
    """Two epochs with an evaluation of all ranks' samples after each; what came out."""
    if way == "line":
        dist.init_process_group("ringdp")
    else:
        dist.init_process_group("gloo")
    set_determinism(seed=7)
    keys = ["image", "label"]
    steps = Compose([ScaleIntensityd("image"), RandFlipd(keys, prob=0.5), EnsureTyped(keys)])
    dataset = CacheDataset(pictures(14), steps, progress=False)
    sampler = DistributedSampler(dataset, even_divisible=True, shuffle=True)
    loader = DataLoader(dataset, batch_size=3, sampler=sampler, num_workers=1)
    net = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2,), norm="batch")
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    error, metric = DiceLoss(sigmoid=True), DiceMetric()
    losses, scores = [], []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            output = model(batch["image"])
            loss = error(output, batch["label"])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            metric((output.sigmoid() > 0.5).float(), batch["label"])
        scores.append(metric.aggregate().item())  # gathers all ranks' values
        metric.reset()
    weights = [parameter.flatten().tolist() for parameter in model.parameters()]
    return {"losses": losses, "scores": scores, "weights": weights}


if __name__ == "__main__":
    launched.main(train)
