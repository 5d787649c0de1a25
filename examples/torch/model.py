"""The residual networks of `torchvision.models`, in PyTorch."""

import torch
from torch import nn


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = projection(inputs, width, stride)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(inputs, outputs, stride)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def projection(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A ResNet, whose first layers keep the size of an image if `small_stem`."""

    def __init__(self, block, depths, classes=1000, channels=3, width=64, small_stem=False):
        super().__init__()
        window = (3, 1, 1) if small_stem else (7, 2, 3)
        self.conv1 = nn.Conv2d(channels, width, *window, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        inputs = width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(block(inputs, width << i, 2 if i and not j else 1))
                inputs = block.expansion * (width << i)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(classes=1000, **arguments):
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, **arguments)


def resnet50(classes=1000, **arguments):
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, **arguments)
