"""The networks of the examples, and the same in PyTorch."""

import importlib
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
    return importlib.import_module("torch_networks").AlexNet(classes, dropout=0.0)


def torch_resnet18(torch, classes):
    return load("torch", "model").resnet18(classes)


STEPS, BATCH = 5, 4


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
