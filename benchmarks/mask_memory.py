"""Print what the arena of a training step would save if masks waited in the place of activations.

    python benchmarks/mask_memory.py [NETWORK ...]

The gradient of relu needs of its result only where it is positive.  Counted are the results that
the backward pass reads for nothing else: from their last other reader on, a mask takes a byte in
the place of four.  `live` is the most that results and scratch memory take at once, in MiB.
"""

import argparse

import numpy as np

import minigraph as mg
from minigraph.bench.cases import NETWORKS, case
from minigraph.bench.ours import LIBRARY, training
from minigraph.passes.kernels.retyping import graph_of, is_generated
from minigraph.passes.rewrite.facts import filled_with
from minigraph.program import Home

MIB = 1 << 20
DEFAULT = ["alexnet", "resnet18", "resnet50", "mobilenetv2", "unet", "gpt"]


def reads_mask(node, i):
    """Whether a kernel only compares its input `i` with zero."""
    if node.inputs[i].dtype != np.float32 or not is_generated(node):
        return False
    graph = graph_of(node)
    users, same = graph.users(), [graph.inputs[i]]
    for x in same:
        if any(x is y for y in graph.outputs):
            return False
        same += [user for user in users[x] if user.op.is_view]
        others = [user for user in users[x] if not user.op.is_view]
        if not all(
            user.dtype == np.bool_ and any(filled_with(y) == 0 for y in user.inputs)
            for user in others
        ):
            return False
    return True


def live(program):
    """Return the bytes that are live at each step, and with masks where they suffice."""
    now = np.zeros(len(program.steps) + 1)
    masked = now.copy()
    for buffer in (b for b in program.buffers if b.home is Home.ARENA):
        whole = buffer.first
        for at, step in enumerate(program.steps):
            if any(not reads_mask(step.node, i) for i in step.reads.get(buffer, ())):
                whole = at
        if not any(buffer in step.reads for step in program.steps):
            whole = buffer.last
        now[buffer.first : buffer.last + 1] += buffer.nbytes
        masked[buffer.first : whole + 1] += buffer.nbytes
        masked[whole + 1 : buffer.last + 1] += buffer.nbytes / 4
    return now, masked


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    print("| network | live | with masks | less |")
    print("| --- | ---: | ---: | ---: |")
    for name in parser.parse_args().networks or DEFAULT:
        subject = case(name, None)
        cg = mg.comp_graph(options={"graph_opt_level": 3, "autotune": "cached"})
        step, batches = training(cg, subject, subject.network(LIBRARY))
        step(*next(batches))
        now, masked = (each.max() / MIB for each in live(step._program))
        print(
            f"| {subject.title} | {now:.0f} | {masked:.0f} | {1 - masked / now:.0%} |", flush=True
        )


if __name__ == "__main__":
    main()
