"""Functions of images whose height and width the calls give."""

import pytest
from sized import OF_IMAGES, check_sizes

import minigraph as mg
from minigraph import nn, ops

# Of images [n, 4, h, w] whose height and width the calls give, too.
OF_ANY_IMAGES = {
    name: OF_IMAGES[name]
    for name in ("conv", "conv-groups", "conv-transpose", "batch-norm", "group-norm", "max-pool")
} | {
    "max-pool-overlap": lambda: nn.MaxPool2d(3, stride=2, padding=1),
    "avg-pool": lambda: nn.AvgPool2d(3, stride=2, padding=1),
    "avg-pool-inside": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "global-avg-pool": lambda: nn.AdaptiveAvgPool2d(1),
    "global-max-pool": lambda: nn.AdaptiveMaxPool2d(1),
    "second-derivative": lambda: (
        lambda x: mg.grad((nn.MaxPool2d(2)(x) ** 3).sum() + (nn.AvgPool2d(2)(x) ** 3).sum(), [x])[0]
    ),
    "conv-same": lambda: nn.Conv2d(4, 8, 4, padding="same"),
    "conv-reflect": lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"),
    "conv-circular": lambda: nn.Conv2d(4, 8, 3, padding=2, padding_mode="circular"),
    "conv-transpose-padding": lambda: nn.ConvTranspose2d(4, 2, 4, stride=2, padding=1),
    "conv-transpose-output-padding": lambda: nn.ConvTranspose2d(
        4, 2, 3, stride=2, padding=1, output_padding=1
    ),
    "max-pool-ceil": lambda: nn.MaxPool2d(3, stride=2, ceil_mode=True),
    "avg-pool-of-two-sides": lambda: nn.AvgPool2d((2, 3), stride=(1, 2)),
    "avg-pool-ceil": lambda: nn.AvgPool2d(4, stride=3, padding=1, ceil_mode=True),
    "pool-of-a-pool": lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(3, 2, 1)),
    "upsample": lambda: nn.Upsample(scale_factor=2),
    "upsample-bilinear": lambda: nn.Upsample(scale_factor=3, mode="bilinear"),
    "upsample-aligned": lambda: nn.UpsamplingBilinear2d(scale_factor=2),
    "halved": lambda: nn.Upsample(scale_factor=0.5, mode="bilinear"),
    "resized": lambda: nn.Upsample(size=(5, 8)),
    "resized-to-itself": lambda: (
        lambda x: x + ops.interpolate(ops.max_pool2d(x, 2), size=x.shape[2:])
    ),
    "replication-pad": lambda: nn.ReplicationPad2d((1, 2, 3, 0)),
    "two-ways-to-halve": lambda: (
        lambda x: ops.max_pool2d(x, 3, 2, 1) + x[:, :, ::2, ::2] + ops.avg_pool2d(x, 1, 2)
    ),
    "cropped": lambda: (
        lambda x: x + nn.Upsample(scale_factor=2)(x)[:, :, : x.shape[2], 1 : x.shape[3] + 1]
    ),
    "residual": lambda: _Residual(),
}


class _Residual(nn.Module):
    """The parts of a ResNet whose sizes have to agree."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 7, stride=2, padding=3)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.long = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1))
        self.short = nn.Conv2d(4, 8, 1, 2)
        self.last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))

    def forward(self, x):
        x = self.pool(self.first(x))
        return self.last(self.long(x) + self.short(x))


@pytest.mark.parametrize("name", OF_ANY_IMAGES)
def test_each_height_and_width_gives_what_a_function_of_it_gives(name):
    shapes = [(2, 4, 6, 6), (1, 4, 9, 7), (3, 4, 8, 12)]
    check_sizes(OF_ANY_IMAGES[name], (None, 4, None, None), shapes)
