"""AlexNet, the one-tower network of "One weird trick", with the layers of torchvision.

A. Krizhevsky (2014), One weird trick for parallelizing convolutional neural networks,
https://arxiv.org/abs/1404.5997.  It is the network of Krizhevsky, Sutskever and Hinton (2012)
without the division between two GPUs and without local response normalisation.

The layers are numbered and initialised as in `torchvision.models.alexnet`: its state dict loads.
"""

import minigraph as mg
from minigraph import nn

MIN_SIZE = 63  # pixels a side: for smaller images the last pooling has no output


class AlexNet(nn.Module):
    """Class scores (n, classes) of images (n, channels, h, w), designed for h = w = 224."""

    def __init__(self, classes=1000, dropout=0.5, channels=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, classes),
        )
        self.flatten = nn.Flatten()

    def forward(self, x):
        if min(x.shape[2:]) < MIN_SIZE:
            raise mg.ShapeError(f"images need {MIN_SIZE} pixels a side or more, not {x.shape[2:]}")
        return self.classifier(self.flatten(self.avgpool(self.features(x))))
