"""A multilayer perceptron: linear layers with ReLU and dropout between them."""

from minigraph import nn


class MLP(nn.Module):
    """Class scores (n, classes) of examples (n, ...), each of `inputs` numbers.

    hidden  the width of each layer between the first and the last
    """

    def __init__(self, inputs, classes, hidden=(128,), dropout=0.2):
        super().__init__()
        layers = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout)]
            inputs = width
        self.layers = nn.Sequential(*layers, nn.Linear(inputs, classes))

    def forward(self, x):
        return self.layers(x)
