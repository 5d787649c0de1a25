"""AlexNet and ResNet in PyTorch, the same networks as the examples' (torchvision's)."""

from torch import nn
from torch.nn import functional


def alexnet(classes=1000):
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.AdaptiveAvgPool2d(6), nn.Flatten()),
        *(nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU()),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()),
        nn.Linear(4096, classes),
    )


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, or a 3x3 one between two of 1x1."""

    def __init__(self, inputs, width, stride, expansion):
        super().__init__()
        outputs = width * expansion
        if expansion == 1:
            shape = [(inputs, width, 3, stride), (width, width, 3, 1)]
        else:
            shape = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        layers = []
        for c, k, size, step in shape:
            layers += [nn.Conv2d(c, k, size, step, size // 2, bias=False), nn.BatchNorm2d(k)]
            layers += [nn.ReLU()]
        self.residual = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, x):
        return functional.relu(self.residual(x) + self.shortcut(x))


def resnet(depths, expansion, classes=1000):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for i, depth in enumerate(depths):
        for j in range(depth):
            stride = 2 if i > 0 and j == 0 else 1
            layers.append(Block(channels, 64 << i, stride, expansion))
            channels = (64 << i) * expansion
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


MODELS = {
    "alexnet": alexnet,
    "resnet18": lambda: resnet((2, 2, 2, 2), 1),
    "resnet50": lambda: resnet((3, 4, 6, 3), 4),
}
