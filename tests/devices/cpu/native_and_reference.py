"""What the CPU's native kernels compute, and what the ops mean."""

import minigraph as mg


def both(cases, **options):
    """Return pairs of what native kernels compute and what the ops mean.

    cases  of a function of expressions and its arrays each; all are compiled as one function
    """
    inputs, arrays, outputs = [], [], []
    for build, *xs in cases:
        nodes = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs, len(inputs))]
        inputs, arrays, outputs = [*inputs, *nodes], [*arrays, *xs], [*outputs, build(*nodes)]
    native, reference = (
        mg.comp_graph(device, options).compile(inputs, outputs) for device in ("cpu", "reference")
    )
    assert not native.report().numpy
    return list(zip(native(*arrays), reference(*arrays), strict=True))


def assert_bits(*cases, **options):
    """Native kernels compute to the bit what the ops mean."""
    for i, (found, wanted) in enumerate(both(cases, **options)):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), i
        assert found.tobytes() == wanted.tobytes(), i
