"""Write a page that shows a training step of ResNet-18 at optimisation levels 3 and 2."""

import argparse

import numpy as np
from model import resnet18

import minigraph as mg
from minigraph import nn, ops, optim

BATCH, SIZE, CLASSES = 8, 64, 10


def training_step(level):
    """Return the function of a training step, and its profile."""
    nn.manual_seed(0)
    net = resnet18(CLASSES)
    images = mg.input("images", (BATCH, 3, SIZE, SIZE))
    labels = mg.input("labels", (BATCH,), "int64")
    loss = ops.cross_entropy(net(images), labels)
    updates = {**optim.Adam(net.parameters(), lr=1e-3).minimize(loss), **net.updates()}
    cg = mg.comp_graph("cpu", {"graph_opt_level": level})
    step = cg.compile([images, labels], loss, updates)
    rng = np.random.default_rng(0)
    return step, step.profile(
        rng.standard_normal(images.shape, "float32"), rng.integers(0, CLASSES, BATCH)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", metavar="PAGE", help="where to write it, such as page.html")
    path = parser.parse_args().page
    (step, _), (other, _) = map(training_step, (3, 2))
    step.to_html(path, beside=[other])


if __name__ == "__main__":
    main()
