"""The networks of the examples, and the same in PyTorch."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops, optim

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(example, name):
    """Return a module of an example."""
    path = EXAMPLES / example / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ALEXNET, MLP, RESNET = (load(name, "model") for name in ("alexnet", "mlp", "resnet"))


# ---------------------------------------------------------------- the same in PyTorch


def torch_alexnet(torch, classes):
    """AlexNet of `torchvision.models`, without dropout."""
    tnn = torch.nn

    class AlexNet(tnn.Module):
        def __init__(self):
            super().__init__()
            self.features = tnn.Sequential(
                *[tnn.Conv2d(3, 64, 11, 4, 2), tnn.ReLU(), tnn.MaxPool2d(3, 2)],
                *[tnn.Conv2d(64, 192, 5, padding=2), tnn.ReLU(), tnn.MaxPool2d(3, 2)],
                *[tnn.Conv2d(192, 384, 3, padding=1), tnn.ReLU()],
                *[tnn.Conv2d(384, 256, 3, padding=1), tnn.ReLU()],
                *[tnn.Conv2d(256, 256, 3, padding=1), tnn.ReLU(), tnn.MaxPool2d(3, 2)],
            )
            self.avgpool = tnn.AdaptiveAvgPool2d((6, 6))
            self.classifier = tnn.Sequential(
                *[tnn.Dropout(0.0), tnn.Linear(256 * 6 * 6, 4096), tnn.ReLU()],
                *[tnn.Dropout(0.0), tnn.Linear(4096, 4096), tnn.ReLU()],
                tnn.Linear(4096, classes),
            )

        def forward(self, x):
            return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))

    return AlexNet()


def torch_resnet18(torch, classes):
    """ResNet-18 of `torchvision.models`."""
    tnn = torch.nn

    class Block(tnn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = tnn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = tnn.BatchNorm2d(outputs)
            self.conv2 = tnn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = tnn.BatchNorm2d(outputs)
            if stride != 1:
                self.downsample = tnn.Sequential(
                    tnn.Conv2d(inputs, outputs, 1, stride, bias=False), tnn.BatchNorm2d(outputs)
                )

        def forward(self, x):
            y = torch.relu(self.bn1(self.conv1(x)))
            shortcut = self.downsample(x) if hasattr(self, "downsample") else x
            return torch.relu(self.bn2(self.conv2(y)) + shortcut)

    class ResNet(tnn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = tnn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.bn1 = tnn.BatchNorm2d(64)
            self.maxpool = tnn.MaxPool2d(3, 2, 1)
            self.layer1 = tnn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
            self.layer2 = tnn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
            self.layer3 = tnn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
            self.layer4 = tnn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
            self.avgpool = tnn.AdaptiveAvgPool2d(1)
            self.fc = tnn.Linear(512, classes)

        def forward(self, x):
            x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(torch.flatten(self.avgpool(x), 1))

    return ResNet()


STEPS, BATCH = 10, 4


def our_losses(net, batches, lr):
    images, labels = mg.input("images", (BATCH, 3, 64, 64)), mg.input("labels", (BATCH,), "int64")
    optimizer = optim.Adam(net.parameters(), lr)
    loss = ops.cross_entropy(net(images), labels)
    updates = {**optimizer.minimize(loss), **net.updates()}
    cg = mg.comp_graph(options={"num_threads": 1, "autotune": "off"})
    step = cg.compile([images, labels], loss, updates)
    return [float(step(*batch)) for batch in batches]


def torch_losses(torch, net, batches, lr):
    optimizer = torch.optim.Adam(net.parameters(), lr, fused=True)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            net(torch.from_numpy(images)), torch.from_numpy(labels)
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_losses(make, make_torch, lr):
    """Train a network here and in PyTorch, from the same weights, and compare the losses."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    theirs, ours = make_torch(torch, 10), make(10)
    ours.load_state_dict(theirs.state_dict())
    rng = np.random.default_rng(0)
    batches = [
        (rng.standard_normal((BATCH, 3, 64, 64), "float32"), rng.integers(0, 10, BATCH))
        for _ in range(STEPS)
    ]
    expected = torch_losses(torch, theirs, batches, lr)
    np.testing.assert_allclose(our_losses(ours, batches, lr), expected, rtol=1e-3)
