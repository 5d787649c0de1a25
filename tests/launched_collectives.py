"""The program of launched processes: collectives, compared with NumPy, on all devices."""

import launched_training
import numpy as np
from cuda_device import on_host

import minigraph as mg
from minigraph import ops
from minigraph.debug.verify import VerifiedFunction
from minigraph.devices.cpu import compiler
from minigraph.graph import BFLOAT16

WORLD = mg.distributed.world()
SIZE, RANK = WORLD.size, WORLD.rank
DTYPES = ("float32", "float64", "float16", BFLOAT16, "int32", "int16", "uint8")


def given(dtype, rank, shape=(3, 2)):
    """Return a process's operand: small integers, which every dtype adds exactly."""
    return np.random.default_rng(rank).integers(0, 9, shape).astype(dtype)


def compiled(inputs, outputs, updates=None, device="cpu", level=3, **options):
    options = {"graph_opt_level": level, "num_threads": 1, **options}
    return mg.comp_graph(device, options).compile(inputs, outputs, updates)


def agreement():
    """Each process knows the others, and values travel between them."""
    assert WORLD is mg.distributed.world() and repr(WORLD) == f"World(size={SIZE})"
    assert WORLD.gather({"rank": RANK}) == [{"rank": rank} for rank in range(SIZE)]
    assert WORLD.broadcast("x" * RANK, root=1) == "x"
    assert WORLD.broadcast([], root=0) == []
    assert WORLD.any(RANK == 1) and not WORLD.any(False)
    assert isinstance(WORLD.handle, int)
    WORLD.barrier()


def results(device, level):
    """All that an op makes of arrays is what NumPy makes of those of all processes."""
    inputs = [mg.input(np.dtype(dtype).name, (3, 2), dtype) for dtype in DTYPES]
    makes = {
        "sum": lambda x: ops.all_reduce(x, WORLD),
        "max": lambda x: ops.all_reduce(x, WORLD, "max"),
        "root": lambda x: ops.broadcast(x, WORLD, root=SIZE - 1),
        "rows": lambda x: ops.all_gather(x, WORLD),
        "columns": lambda x: ops.all_gather(x, WORLD, axis=1),
    }
    outputs = {(x.dtype, name): make(x) for x in inputs for name, make in makes.items()}
    values = compiled(inputs, outputs, device=device, level=level)(
        *(given(dtype, RANK) for dtype in DTYPES)
    )
    for (dtype, name), value in values.items():
        everyone = [given("float64", rank) for rank in range(SIZE)]
        expected = {
            "sum": np.sum(everyone, axis=0),
            "max": np.max(everyone, axis=0),
            "root": everyone[-1],
            "rows": np.concatenate(everyone),
            "columns": np.concatenate(everyone, axis=1),
        }[name]
        value = on_host(value)
        assert value.dtype == dtype
        where = f"{name} of {dtype.name} on {device} at level {level}"
        np.testing.assert_array_equal(value.astype("float64"), expected, err_msg=where)


def gradients(level, device="cpu"):
    """Gradients are those of the sum of what all processes compute."""
    x, w = mg.input("x", (3, 2), "float64"), mg.input("w", (3, 2 * SIZE), "float64")
    own = w[:, :2]
    losses = {
        "sum": (ops.all_reduce(x, WORLD) * own).sum(),
        "mean": (ops.all_reduce(x, WORLD, "mean") * own).sum(),
        "max": (ops.all_reduce(x, WORLD, "max") * own).sum(),
        "root": (ops.broadcast(x, WORLD, root=1) * own).sum(),
        "columns": (ops.all_gather(x, WORLD, axis=1) * w).sum(),
    }
    outputs = {name: mg.grad(loss, [x])[0] for name, loss in losses.items()}
    xs = [given("float64", rank) for rank in range(SIZE)]
    ws = [given("float64", rank + 9, (3, 2 * SIZE)) for rank in range(SIZE)]
    values = compiled([x, w], outputs, device=device, level=level)(xs[RANK], ws[RANK])
    values = {name: on_host(value) for name, value in values.items()}
    total, wins = sum(v[:, :2] for v in ws), np.equal(xs, np.max(xs, axis=0))
    np.testing.assert_allclose(values["sum"], total)
    np.testing.assert_allclose(values["mean"], total / SIZE)
    np.testing.assert_allclose(values["max"], total * wins[RANK] / wins.sum(axis=0))
    np.testing.assert_allclose(values["root"], total * (RANK == 1))
    np.testing.assert_allclose(values["columns"], sum(ws)[:, 2 * RANK : 2 * RANK + 2])


def nan_wins(device="cpu"):
    x = mg.input("x", (2,))
    most = compiled([x], ops.all_reduce(x, WORLD, "max"), device=device)
    value = on_host(most([np.nan if RANK == 1 else RANK, RANK]))
    np.testing.assert_array_equal(value, np.float32([np.nan, SIZE - 1]))


def parameters(sizes):
    rng = np.random.default_rng(RANK)  # which process 0 decides
    return [mg.Parameter(rng.standard_normal(n, "float32"), f"p{n}") for n in sizes]


def buckets(compress, count, device="cpu"):
    """Gradients travel in so many buckets; parameters begin as process 0 has them."""
    ps = parameters((5, 70, 300, 4))
    start = WORLD.broadcast([p.numpy() for p in ps])
    x = mg.input("x", ())
    loss = sum((p * p * x).sum() for p in ps)
    sgd = mg.optim.SGD(ps, 0.5)
    options = {"distributed.bucket_bytes": 1000, "distributed.compress": compress}
    step = compiled([x], loss, sgd.minimize(loss, reduce=WORLD), device, **options)
    assert step.report().hidden is None
    for call in range(3):
        step(float(RANK + call))
    exact = compress == "off"
    for p, value in zip(ps, start, strict=True):
        for call in range(3):
            value = value * (1 - np.mean([rank + call for rank in range(SIZE)]))
        np.testing.assert_allclose(p.numpy(), value, rtol=1e-5 if exact else 0.05)
    report = step.report()
    assert report.ops["start_collective"] == report.ops["await_collective"] == count, report
    assert report.launches == 1
    assert sum(t.bytes for t in report.traffic) == 379 * (4 if exact else 2)
    if device == "cuda":  # which takes times while it profiles
        assert report.hidden is None
        step.profile(1.0, calls=2)
        report = step.report()
    assert {t.times for t in report.traffic} == {2} and 0 <= report.hidden <= 1  # of 3 calls
    assert len(report.section("traffic").splitlines()) == count
    assert f"; computation overlaps {report.hidden:.0%}" in str(report)


def bits_do_not_depend_on_the_way():
    """Every level has the same bits in all processes."""
    ps = parameters((33,))
    x = mg.input("x", (33,))
    loss = (ops.sin(ps[0]) * x).sum()
    for level, device in ((1, "cpu"), (-3, "cpu"), (3, "reference")):
        step = compiled(
            [x], loss, mg.optim.Adam(ps, 0.1).minimize(loss, reduce=WORLD), device, level
        )
        step(given("float32", RANK, 33))
        assert len(set(WORLD.gather(ps[0].numpy().tobytes()))) == 1


def dropout_differs():
    x = mg.input("x", (None,))
    nothing = ops.all_reduce(x[:1], WORLD)
    drop = compiled([x], [ops.dropout(x, 0.5), nothing])
    bits = WORLD.gather(drop(np.ones(64, "float32"))[0].tobytes())
    assert len(set(bits)) == SIZE


def refused():
    """Assert that a call that would hang is an error in all processes."""
    x = mg.input("x", (None,))
    total = ops.all_reduce(x.sum(), WORLD)
    step = compiled([x], total)
    step(np.ones(3, "float32"))
    message(
        lambda: step(np.ones(3 + RANK, "float32")),
        "process 1 calls with the sizes batch 4, process 0 with batch 3",
    )
    message(
        lambda: compiled([x], total * (2 if RANK == 1 else 3)),
        "process 1 compiles with another graph: it has",
    )
    message(
        lambda: compiled([x], total, level=1 + RANK % 2),
        "process 1 compiles with options graph_opt_level=2",
    )
    message(
        lambda: ops.broadcast(x, WORLD, root=SIZE), f"root is {SIZE}; it takes a rank from 0 to"
    )
    v = mg.input("v", (3,))
    total, _ = ops.scan(lambda c, row: (c + ops.all_reduce(row, WORLD), ()), 0.0, v)
    message(lambda: compiled([v], total), "is in the body of a scan")


def wrong_in_one():
    """A result that differs from level 0 in one process is an error in all, which wait for none."""
    x = mg.input("x", (3,))
    step = compiled([x], ops.all_reduce((x * x).sum(), WORLD), level=-3)
    step(given("float32", RANK, 3))
    written = VerifiedFunction._run_reference
    if RANK == 1:
        VerifiedFunction._run_reference = lambda self, values: {
            at: value + 1 for at, value in written(self, values).items()
        }
    message(
        lambda: step(given("float32", RANK, 3)),
        "graph_opt_level -3 differs from level 0 in process 1: output 0",
    )
    VerifiedFunction._run_reference = written
    step(given("float32", RANK, 3))


def message(work, expected):
    try:
        work()
    except mg.GraphError as error:
        assert expected in str(error), error
    else:
        raise AssertionError(f"no error says {expected!r}")


if __name__ == "__main__":
    compiler.FLAGS = (*compiler.FLAGS, "-Og")  # which compiles quicker
    agreement()
    for device, level in (("cpu", 0), ("cpu", 3), ("reference", 3)):
        results(device, level)
    for level in (0, 3):
        gradients(level)
    nan_wins()
    buckets("off", 2)  # one of them the largest, alone
    buckets("bfloat16", 1)
    bits_do_not_depend_on_the_way()
    dropout_differs()
    wrong_in_one()
    refused()
    launched_training.compare("small", 5)  # process 0 prints, and process 1 waits for it
