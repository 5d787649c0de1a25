"""Results of the CPU's native kernels, and of the ops' NumPy meanings."""

import minigraph as mg


def both(cases, **options):
    """Return pairs of the results of native kernels and of the ops' NumPy meanings.

    cases  of a function of expressions, which returns one or several, and its arrays each; all are
           compiled as one function
    """
    inputs, arrays, outputs = [], [], []
    for build, *xs in cases:
        nodes = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs, len(inputs))]
        inputs, arrays, results = [*inputs, *nodes], [*arrays, *xs], build(*nodes)
        outputs += results if isinstance(results, list | tuple) else [results]
    native, reference = (
        mg.comp_graph(device, options).compile(inputs, outputs) for device in ("cpu", "reference")
    )
    assert not native.report().numpy
    return list(zip(native(*arrays), reference(*arrays), strict=True))


def assert_bits(*cases, **options):
    """Assert that native kernels give the bits of the ops' NumPy meanings."""
    for i, (actual, expected) in enumerate(both(cases, **options)):
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), i
        assert actual.tobytes() == expected.tobytes(), i
