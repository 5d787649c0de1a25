"""Models of images and volumes, as programs of PyTorch have them; and what makes such models."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """Parts by name, and a function of them and of the inputs."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def unet(m, x):
    a = m.first(x)
    b = m.down(a)
    up = torch.cat([m.grow(m.deep(b)), b], 1)
    up = F.interpolate(m.mix(up), size=a.shape[-2:], mode="bilinear", align_corners=False)
    return m.head(torch.cat([up, a], 1))


def make_unet():
    conv = nn.Conv2d
    return Net(
        unet,
        first=nn.Sequential(conv(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU()),
        down=nn.Sequential(conv(4, 8, 3, 2, 1), nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU()),
        deep=conv(8, 8, 3, 2, 1, padding_mode="reflect"),
        grow=nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1),
        mix=conv(16, 4, 3, padding=1),
        head=conv(8, 2, 1),
    )


def volumes(m, x):
    a = F.leaky_relu(m.norm(m.first(x)))
    y = torch.cat([a, m.grow(m.pool(m.down(a)))], 1)
    return m.head(y), F.adaptive_avg_pool3d(y, (2, 1, 1)).mean()


def make_volumes():
    return Net(
        volumes,
        first=nn.Conv3d(1, 2, 3, padding=1),
        norm=nn.InstanceNorm3d(2),
        down=nn.Conv3d(2, 4, 3, padding=1),
        pool=nn.MaxPool3d(2),
        grow=nn.ConvTranspose3d(4, 2, 3, stride=2, padding=1, output_padding=1),
        head=nn.Conv3d(4, 2, 1),
    )


def dice_and_focal(scores, target):
    p, one = scores.softmax(1), F.one_hot(target, 2).movedim(-1, 1).to(scores.dtype)
    both = (p * one).sum((0, 2, 3)), (p + one).sum((0, 2, 3))
    weight = torch.tensor([0.3, 0.7], dtype=scores.dtype)
    loss = F.cross_entropy(scores, target, weight, reduction="none")
    return (1 - (2 * both[0] + 1) / (both[1] + 1)).mean() + ((1 - (-loss).exp()) ** 2 * loss).mean()
