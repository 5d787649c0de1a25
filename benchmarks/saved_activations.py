"""Print what it gains, and costs, that activations wait for the backward pass in bfloat16.

    python benchmarks/saved_activations.py [resnet18 resnet50 alexnet] [--quick] [--turns 9]
    python benchmarks/saved_activations.py --trainings 8

The first compares a training step with and without `graph_opt.saved_activations`, at level 3: the
arena, and times of steps that take turns, as medians with quartiles in brackets.  The second trains
ResNet-20 on the digits of scikit-learn, 16 x 16 pixels, with so many seeds for each, and prints the
means of the last epoch's loss and of the accuracy on the test images, with their standard
deviations.
"""

import argparse

import numpy as np
from turns import median_ms, seconds, take_turns

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.bench.cases import NETWORKS, case
from minigraph.bench.networks import resnet20
from minigraph.bench.ours import LIBRARY, training
from minigraph.data import DataLoader, Digits
from minigraph.evaluation import evaluate

TYPES = ("float32", "bfloat16")
BATCH, EPOCHS, RATE = 64, 8, 1e-3
MIB = 1 << 20


def graph_for(dtype):
    return mg.comp_graph(options={"graph_opt_level": 3, "graph_opt.saved_activations": dtype})


def compare(network, quick, turns):
    """Print a row for the steps of a network."""
    subject = case(network, quick=quick)
    steps = [training(graph_for(dtype), subject, subject.network(LIBRARY)) for dtype in TYPES]
    sides = [
        lambda step=step, batches=batches: seconds(step, *next(batches)) for step, batches in steps
    ]
    taken = take_turns(sides, turns)
    arenas = [step.report().memory.arena_bytes / MIB for step, _ in steps]
    cells = [f"{arena:.0f}" for arena in arenas] + [f"{arenas[1] / arenas[0]:.2f}"]
    cells += map(median_ms, taken.T)
    plain, small = np.median(taken, axis=0)
    print(f"| {subject.title} | {' | '.join(cells)} | {small / plain:.2f} |", flush=True)


def trained(dtype, seed):
    """Return the loss of the last epoch of a training, and the accuracy on the test images."""
    nn.manual_seed(seed)
    net = resnet20(LIBRARY)
    images = Digits(size=16, channels=3)
    loader = DataLoader(images, BATCH, shuffle=True, seed=seed, drop_last=True)
    x, labels = mg.input("x", (BATCH, *images.shape)), mg.input("labels", (BATCH,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters(), RATE).minimize(loss), **net.updates()}
    step = graph_for(dtype).compile([x, labels], loss, updates)
    for _ in range(EPOCHS):
        losses = [float(step(*batch)) for batch in loader]
    test = DataLoader(Digits(train=False, size=16, channels=3), BATCH)
    return np.mean(losses), evaluate(net, test)["accuracy"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    networks = ["resnet18", "resnet50", "alexnet"]
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []])
    parser.add_argument("--quick", action="store_true", help="fewer and smaller images")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--trainings", type=int, help="seeds to train with instead")
    asked = parser.parse_args()

    if asked.trainings:
        print("| activations wait in | loss | test accuracy |")
        print("| --- | ---: | ---: |")
        for dtype in TYPES:
            found = np.array([trained(dtype, seed) for seed in range(asked.trainings)])
            (loss, accuracy), (wide, apart) = found.mean(0), found.std(0, ddof=1)
            print(f"| {dtype} | {loss:.4f} ± {wide:.4f} | {accuracy:.2%} ± {apart:.2%} |")
        return
    print("| | arena, MiB | in bfloat16 | of it | a step, ms | in bfloat16 | of it |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for network in asked.networks or networks:
        compare(network, asked.quick, asked.turns)


if __name__ == "__main__":
    main()
