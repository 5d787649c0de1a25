"""Level 0 against PyTorch eager: training steps, elementwise ops, memory, compile time.

    python benchmarks/level0.py [--cases resnet50,mlp] [--rounds 15] [--threads 2] [--out FILE]

PyTorch runs in its default layout (NCHW), with Adam neither foreach nor fused, as it is written op
by op; the MLP's Adam is written op by op in both.  Prints a table and, with --out, writes JSON.
"""

import argparse
import resource
import statistics
import time
from pathlib import Path

import cases
import numpy as np
from interleave import Worker, interleave, save, serve

from minigraph.backends.cpu import onednn

STEPS = cases.BATCH


def peak():
    """Return the process's maximum of resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(fn):
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def overhead(threads, calls=2000):
    """Return the median seconds of a call with one step, and what each further step adds."""
    import minigraph as mg

    cg = mg.comp_graph("cpu", {"graph_opt_level": 0, "num_threads": threads})
    a, b = mg.input("a", (1,)), mg.input("b", (1,))
    args = [np.ones(1, np.float32)] * 2
    medians = []
    for steps in (1, 1001):
        y = a
        for _ in range(steps):
            y = y + b
        fn = cg.compile([a, b], y)
        medians.append(statistics.median(timed(lambda fn=fn: fn(*args)) for _ in range(calls)))
    return medians[0], (medians[1] - medians[0]) / 1000


# ---------------------------------------------------------------- ours


def ours(case, threads):
    before = peak()
    options = {"graph_opt_level": 0, "num_threads": threads, "autotune": "off"}
    fn, args = cases.function(case, options)
    report = fn.report()
    setup = {
        "compile": sum(report.seconds.values()),
        "stages": report.seconds,
        "steps": len(report.steps),
        "arena": report.memory.arena_bytes,
        "unplanned": report.memory.unplanned_bytes,
    }
    result = [fn(*args)]

    def step():
        result[0] = fn(*args)

    def end():
        return {"peak": peak() - before, "kernels": fn.profile(*args).seconds}

    serve(setup, step, end)


# ---------------------------------------------------------------- PyTorch


def torch_side(case, threads):
    import torch
    import torch_models
    from torch.nn import functional

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    before = peak()
    if case in STEPS:
        x, y = map(torch.from_numpy, cases.images(STEPS[case]))
        net = torch_models.MODELS[case]()
        adam = torch.optim.Adam(net.parameters(), lr=1e-4, foreach=False, fused=False)

        def step():
            adam.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            adam.step()
            return loss.item()
    elif case == "mlp":
        x, y = map(torch.from_numpy, cases.digits())
        layers = (torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        step = written_out(torch.nn.Sequential(*layers), x, y)
    else:
        a, b = map(torch.from_numpy, cases.arrays((cases.LENGTH,), (cases.LENGTH,)))
        out = torch.empty_like(a)
        call = {"a*b": torch.mul, "a+b": torch.add}.get(case)

        def step():
            out.copy_(a) if call is None else call(a, b, out=out)

    step()
    serve({}, step, lambda: {"peak": peak() - before})


def written_out(net, x, y):
    """Return a training step whose Adam is written op by op, as the graph at level 0 has it."""
    import torch

    parameters = list(net.parameters())
    means = [torch.zeros_like(p) for p in parameters]
    squares = [torch.zeros_like(p) for p in parameters]
    count = 0

    def step():
        nonlocal count
        count += 1
        for p in parameters:
            p.grad = None
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            descent = -1e-4 / (1 - 0.9**count)
            scale = (1 - 0.999**count) ** -0.5
            for p, mean, square in zip(parameters, means, squares, strict=True):
                g = p.grad
                mean.copy_(mean * 0.9 + g * 0.1)
                square.copy_(square * 0.999 + g * g * 0.001)
                p.copy_(mean / (torch.sqrt(square) * scale + 1e-8) * descent + p)
        return loss.item()

    return step


# ---------------------------------------------------------------- the table


def measure(case, rounds, threads):
    """Return the figures of one case: ours, PyTorch's, and their ratio."""
    me = str(Path(__file__))
    names = {"ours": case, "torch": case}
    if case in ("a*b", "a+b"):
        names["copy"] = "copy"
    workers = {}
    for name, what in names.items():
        side = "ours" if name == "ours" else "torch"
        workers[name] = Worker(me, "--worker", side, "--cases", what, "--threads", str(threads))
    samples = interleave(workers, rounds)
    ends = {name: worker.close() for name, worker in workers.items()}
    return {
        "seconds": {name: s.seconds for name, s in samples.items()},
        "median": {name: s.median for name, s in samples.items()},
        "spread": {name: s.spread for name, s in samples.items()},
        "speed": samples["torch"].median / samples["ours"].median,
        "setup": workers["ours"].setup,
        "end": ends,
    }


def row(case, found):
    """Return a line of the table."""
    mine, theirs = found["median"]["ours"], found["median"]["torch"]
    text = f"{case:10} {mine * 1e3:10.3f} {theirs * 1e3:10.3f} {found['speed']:8.2f}"
    text += f" {max(found['spread'].values()):7.0%}"
    if "copy" in found["median"]:
        # A copy moves two arrays, the op three.
        share = 1.5 * found["median"]["copy"] / mine
        return f"{text}   {share:.0%} of copy bandwidth"
    setup, end = found["setup"], found["end"]
    if case == "mlp":
        return f"{text}   {setup['steps']} steps"
    memory = end["ours"]["peak"] / end["torch"]["peak"]
    arena = setup["arena"] / setup["unplanned"]
    return (
        f"{text}   peak memory {memory:.2f} of torch's, arena {arena:.2f} of all intermediates, "
        f"compiled in {setup['compile']:.1f} s"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="a*b,a+b,mlp,alexnet,resnet18,resnet50")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", choices=("ours", "torch"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        side = ours if args.worker == "ours" else torch_side
        side(args.cases, args.threads)
        return
    print(f"{'case':10} {'ours ms':>10} {'torch ms':>10} {'speed':>8} {'spread':>7}")
    found = {}
    for case in args.cases.split(","):
        found[case] = measure(case, args.rounds, args.threads)
        print(row(case, found[case]), flush=True)
    call, step = overhead(args.threads)
    print(f"a call of one tiny kernel {call * 1e6:.1f} us, each further one {step * 1e9:.0f} ns")
    if args.out:
        version = onednn.library().version
        save(args.out, found, args.threads, ["torch"], onednn=version, call=call, step=step)


if __name__ == "__main__":
    main()
