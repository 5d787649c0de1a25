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


def densenet(m, x):
    features = [m.first(x)]
    for norm, conv in zip(m.norms, m.convs, strict=True):
        features.append(conv(F.relu(norm(torch.cat(features, 1)))))
    return m.head(F.avg_pool2d(torch.cat(features, 1), 4).flatten(1))


def make_densenet():
    widths = (4, 6, 8)
    return Net(
        densenet,
        first=nn.Conv2d(3, 4, 3, 2, 1),
        norms=nn.ModuleList(map(nn.BatchNorm2d, widths)),
        convs=nn.ModuleList(nn.Conv2d(n, 2, 3, padding=1, bias=False) for n in widths),
        head=nn.Linear(10, 3),
    )


def efficientnet(m, x, noise):
    """Squeeze and excitation, and stochastic depth by given noise."""
    x = m.stem(x)
    y = m.deep(m.wide(x))
    y = y * torch.sigmoid(m.excite(F.silu(m.squeeze(y.mean((2, 3), keepdim=True)))))
    is_kept = (noise + 0.8).floor().view(-1, 1, 1, 1)
    return m.head((x + m.narrow(y) / 0.8 * is_kept).mean([-2, -1]))


def make_efficientnet():
    return Net(
        efficientnet,
        stem=nn.Conv2d(3, 4, 3, 2, 1),
        wide=nn.Sequential(
            nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8, 1e-3, 0.01), nn.SiLU(inplace=True)
        ),
        deep=nn.Conv2d(8, 8, 5, padding=2, groups=8),
        squeeze=nn.Conv2d(8, 2, 1),
        excite=nn.Conv2d(2, 8, 1),
        narrow=nn.Conv2d(8, 4, 1),
        head=nn.Linear(4, 3),
    )


def convnext(m, x):
    x = m.patches(x)
    y = m.norm(m.deep(x).permute(0, 2, 3, 1))
    y = m.scale * m.narrow(F.gelu(m.wide(y)))
    return m.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


def make_convnext():
    return Net(
        convnext,
        patches=nn.Conv2d(3, 8, 4, 4),
        deep=nn.Conv2d(8, 8, 7, padding=3, groups=8),
        norm=nn.LayerNorm(8, eps=1e-6),
        wide=nn.Linear(8, 16),
        narrow=nn.Linear(16, 8),
        scale=nn.Parameter(torch.full((8,), 0.1)),
        head=nn.Linear(8, 3),
    )


def mixer(m, x):
    x = m.embed(F.unfold(x, 4, stride=4).mT)
    x = x + m.tokens(m.norm(x).mT).mT
    return m.head((x + m.channels(x)).mean(1))


def make_mixer():
    def twice(n):
        return nn.Sequential(nn.Linear(n, 8), nn.GELU("tanh"), nn.Linear(8, n))

    parts = {"embed": nn.Linear(48, 6), "norm": nn.LayerNorm(6), "head": nn.Linear(6, 3)}
    return Net(mixer, tokens=twice(16), channels=twice(6), **parts)


def dice_and_focal(scores, target):
    p, one = scores.softmax(1), F.one_hot(target, 2).movedim(-1, 1).to(scores.dtype)
    both = (p * one).sum((0, 2, 3)), (p + one).sum((0, 2, 3))
    weight = torch.tensor([0.3, 0.7], dtype=scores.dtype)
    loss = F.cross_entropy(scores, target, weight, reduction="none")
    return (1 - (2 * both[0] + 1) / (both[1] + 1)).mean() + ((1 - (-loss).exp()) ** 2 * loss).mean()
