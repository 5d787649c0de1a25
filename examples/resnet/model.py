"""Residual networks with 18, 34, 50 and 101 layers: those of torchvision.

K. He, X. Zhang, S. Ren, J. Sun (2015), Deep Residual Learning for Image Recognition,
https://arxiv.org/abs/1512.03385.  Weights are initialised as in their "Delving Deep into
Rectifiers", https://arxiv.org/abs/1502.01852.

A bottleneck that halves the image has the stride in its 3x3 convolution, not in the 1x1 before it:
torchvision's "v1.5", which is a little more accurate.  Names are those of `torchvision.models`:
its state dicts load.
"""

from minigraph import nn, ops


def conv(inputs, outputs, kernel, stride=1):
    """Return a convolution that divides the size by `stride`; the next BatchNorm has the bias."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Base of both blocks: relu(residual(x) + x), with x projected where its shape changes.

    The output has `width * expansion` channels.
    """

    expansion: int

    def project(self, inputs, width, stride):
        """Create the 1x1 projection if the output of the block has another shape than its input."""
        outputs = width * self.expansion
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        return ops.relu(self.residual(x) + shortcut)


class BasicBlock(Block):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs, width, stride=1):
        super().__init__()
        self.conv1 = conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.project(inputs, width, stride)

    def residual(self, x):
        x = ops.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(x))


class Bottleneck(Block):
    """A 1x1 convolution to fewer channels, a 3x3 one, and a 1x1 one to four times as many."""

    expansion = 4

    def __init__(self, inputs, width, stride=1):
        super().__init__()
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.project(inputs, width, stride)

    def residual(self, x):
        x = ops.relu(self.bn1(self.conv1(x)))
        x = ops.relu(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))


class ResNet(nn.Module):
    """Class scores (n, classes) of images (n, channels, h, w).

    block, depths  the class of the blocks, and their number in each of the four layers
    small_stem     for images below 64 pixels: begin with a 3x3 convolution that keeps their size,
                   instead of a 7x7 convolution and a pooling that make them four times smaller
    """

    def __init__(self, block, depths, classes=1000, small_stem=False, channels=3):
        super().__init__()
        self.conv1 = conv(channels, 64, 3) if small_stem else conv(channels, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, stride=2, padding=1)
        widths = (64, 128, 256, 512)
        inputs = 64
        for number, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
            blocks = []
            for i in range(depth):
                stride = 2 if i == 0 and number > 1 else 1
                blocks.append(block(inputs, width, stride))
                inputs = width * block.expansion
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(ops.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.flatten(self.avgpool(x)))


def resnet18(classes=1000, small_stem=False, channels=3):
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, small_stem, channels)


def resnet34(classes=1000, small_stem=False, channels=3):
    return ResNet(BasicBlock, (3, 4, 6, 3), classes, small_stem, channels)


def resnet50(classes=1000, small_stem=False, channels=3):
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, small_stem, channels)


def resnet101(classes=1000, small_stem=False, channels=3):
    return ResNet(Bottleneck, (3, 4, 23, 3), classes, small_stem, channels)
