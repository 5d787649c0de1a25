"""Generated kernels against PyTorch and JAX: expressions on large arrays, and Adam.

    python benchmarks/jit.py [--cases softmax,chain] [--rounds 21] [--threads 2] [--out FILE]

Each side runs in a process of its own, in turn: minigraph at levels 0 and 3, `torch.compile`,
`jax.jit`, and a copy between two arrays of the largest operand's size.  What is not installed is
left out.  The bound is what the case has to read and write at the speed of that copy.
"""

import argparse
import importlib.util
import math
import os
import time
from pathlib import Path

from interleave import Worker, compare, save, serve

CASES = "a*b*c,a*b+c,chain,softmax,layer_norm,batch_norm+relu,batch_norm+relu backward,adam"
SIDES = ("copy", "level 0", "level 3", "torch.compile", "jax.jit")


# ---------------------------------------------------------------- the sides


def ours(case, level, threads):
    import cases

    options = {"graph_opt_level": level, "num_threads": threads, "autotune": "off"}
    fn, args = cases.function(case, options)
    result = [None]

    def step():
        result[0] = fn(*args)

    step()
    moved = 7 * sum(4 * math.prod(shape) for shape in cases.ADAM) if case == "adam" else 0
    results = result[0] if isinstance(result[0], list) else result
    return step, moved or sum(x.nbytes for x in (*args, *results))


def copy(case, threads):
    """Copying an array of 64 MiB as torch does, with the same threads."""
    import cases
    import torch

    torch.set_num_threads(threads)
    (a,) = map(torch.from_numpy, cases.arrays((cases.LENGTH,)))
    out = torch.empty_like(a)
    return lambda: out.copy_(a), 2 * a.numel() * 4


def expressions(xp, functional):
    """Return the cases for a library: `xp` has NumPy's functions, `functional` the others."""
    return {
        "a*b*c": lambda a, b, c: a * b * c,
        "a*b+c": lambda a, b, c: a * b + c,
        "chain": lambda a, b, c: (
            xp.tanh(a * b + c) * xp.exp(-xp.abs(a - c)) / (1 + a * a) + xp.maximum(b, c) * 0.5
        ),
        **functional,
    }


def torch_compiled(case, threads):
    import cases
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    if case == "adam":
        parameters = [torch.from_numpy(x).requires_grad_() for x in cases.arrays(*cases.ADAM)]
        for p, g in zip(parameters, cases.arrays(*cases.ADAM), strict=True):
            p.grad = torch.from_numpy(g)
        fused = torch.optim.Adam(parameters, lr=1e-4, fused=True)
        return fused.step, 0

    def batch_norm_relu(x, weight, bias):
        return torch.relu(functional.batch_norm(x, None, None, weight, bias, training=True))

    made = expressions(
        torch,
        {
            "softmax": lambda x: functional.softmax(x, -1),
            "layer_norm": lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b),
            "batch_norm+relu": batch_norm_relu,
            "batch_norm+relu backward": batch_norm_relu,
        },
    )
    compiled = torch.compile(made[case])
    xs = [torch.from_numpy(x) for x in cases.arrays(*cases.EXPRESSIONS[case][1])]
    if case.endswith("backward"):
        *xs, dy = xs
        for x in xs:
            x.requires_grad_()

        def step():
            torch.autograd.grad(compiled(*xs), xs, dy)

        return step, 0
    result = [None]

    def step():
        with torch.no_grad():
            result[0] = compiled(*xs)

    return step, 0


def jax_jitted(case, threads):
    os.environ["XLA_FLAGS"] = (
        f"--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={threads}"
    )
    import cases
    import jax
    from jax import numpy as jnp

    def batch_norm_relu(x, weight, bias):
        mean = x.mean((0, 2, 3), keepdims=True)
        var = jnp.square(x - mean).mean((0, 2, 3), keepdims=True)
        scale, shift = (v[None, :, None, None] for v in (weight, bias))
        return jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift)

    def layer_norm(x, w, b):
        mean = x.mean(-1, keepdims=True)
        var = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * w + b

    def gradients(x, weight, bias, dy):
        return jax.vjp(batch_norm_relu, x, weight, bias)[1](dy)

    def adam(state, gs, count):
        new = []
        for (p, m, v), g in zip(state, gs, strict=True):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            mean, square = m / (1 - 0.9**count), v / (1 - 0.999**count)
            new.append((p - 1e-4 * mean / (jnp.sqrt(square) + 1e-8), m, v))
        return new

    if case == "adam":
        gs = [jnp.asarray(g) for g in cases.arrays(*cases.ADAM)]
        state = [(p + 0, jnp.zeros_like(p), jnp.zeros_like(p)) for p in gs]
        held = [state, 0]
        update = jax.jit(adam, donate_argnums=0)

        def step():
            held[1] += 1
            held[0] = jax.block_until_ready(update(held[0], gs, float(held[1])))

        return step, 0
    made = expressions(
        jnp,
        {
            "softmax": lambda x: jax.nn.softmax(x, -1),
            "layer_norm": layer_norm,
            "batch_norm+relu": batch_norm_relu,
            "batch_norm+relu backward": gradients,
        },
    )
    compiled = jax.jit(made[case])
    xs = [jnp.asarray(x) for x in cases.arrays(*cases.EXPRESSIONS[case][1])]
    result = [None]

    def step():
        result[0] = jax.block_until_ready(compiled(*xs))

    return step, 0


def work(side, case, threads):
    """Be the worker that runs one case on one side."""
    start = time.perf_counter()
    if side == "copy":
        step, nbytes = copy(case, threads)
    elif side.startswith("level"):
        step, nbytes = ours(case, int(side[-1]), threads)
    else:
        step, nbytes = {"torch.compile": torch_compiled, "jax.jit": jax_jitted}[side](case, threads)
    step()
    first = time.perf_counter() - start
    serve({"first call": first, "bytes": nbytes}, step, dict)


def measure(case, rounds, threads):
    """Return the samples of each side."""
    me = str(Path(__file__))
    needs = {"copy": "torch", "torch.compile": "torch", "jax.jit": "jax"}
    sides = [s for s in SIDES if s not in needs or importlib.util.find_spec(needs[s])]
    if case.endswith("backward"):
        sides.remove("level 0")  # its gradients run in several steps, the forward ones with them
    workers = {
        side: Worker(me, "--worker", side, "--cases", case, "--threads", str(threads))
        for side in sides
    }
    return compare(workers, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.cases, args.threads)
        return
    found = {}
    for case in args.cases.split(","):
        found[case] = measure(case, args.rounds, args.threads)
        fused = found[case]["level 3"]
        print(f"{case}: {fused['median'] * 1e3:.2f} ms, spread {fused['spread']:.0%}")
        if "copy" in found[case]:
            bandwidth = found[case]["copy"]["bytes"] / found[case]["copy"]["median"]
            share = fused["bytes"] / bandwidth / fused["median"]
            print(f"  {share:.0%} of copy bandwidth ({bandwidth / 1e9:.0f} GB/s)")
        for side in found[case]:
            if side not in ("level 3", "copy"):
                other = found[case][side]
                ratio = other["median"] / fused["median"]
                print(
                    f"  {ratio:.2f} times as fast as {side} ({other['median'] * 1e3:.2f} ms, "
                    f"spread {other['spread']:.0%}, first call {other['first call']:.1f} s)",
                    flush=True,
                )
    if args.out:
        save(args.out, found, args.threads, ["torch", "jax"])


if __name__ == "__main__":
    main()
