"""The CUDA text of training steps as the benchmarks run them is what NVRTC takes."""

import functools

import cuda_on_cpu
import pytest

import minigraph as mg
from minigraph import ops, optim
from minigraph.bench.cases import EXPRESSIONS, NETWORKS
from minigraph.bench.ours import LIBRARY

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("cudnn")
from cuda_stand_in import StandIn, open_instead
from long_runs import ARCHITECTURES, mostly_long

from minigraph.devices.cuda import nvrtc


class NothingRuns(StandIn):
    """A device that need not have the values of parameters, which take gigabytes."""

    def upload(self, to, source, stream):
        pass


@pytest.fixture(scope="module")
def compiled():
    """All kernels that the networks and expressions of the benchmarks ask for, and the functions.

    The functions are those of level 3, by the name of the network and its types.
    """
    found, functions = {}, {}

    def load(wanted, driver, on_disk):
        found.update((source.name, source) for source in wanted)
        return {source.name: 0 for source in wanted}

    with pytest.MonkeyPatch.context() as patch:
        open_instead(patch, NothingRuns(), load)
        for level in (0, 3):
            options = {"graph_opt_level": level, "autotune": "off"}
            for expression in EXPRESSIONS.values():
                inputs = [mg.input(f"x{i}", s) for i, s in enumerate(expression.shapes)]
                compile(options, inputs, expression.formula(ops, *inputs))
            for name in ("mlp", "alexnet", "resnet50"):
                functions[name, "float32"] = train(options, name)
        functions["resnet50", "bfloat16"] = train({**options, "amp": "bfloat16"}, "resnet50")
        saved = {**options, "graph_opt.saved_activations": "bfloat16"}
        functions["resnet20", "saved in bfloat16"] = train(saved, "resnet20")
        step.cache_clear()
    return list(found.values()), functions


def compile(options, inputs, outputs, updates=None):
    return mg.comp_graph("cuda", options).compile(inputs, outputs, updates)


@functools.cache
def step(name):
    """What a training step is compiled from: inputs, loss and updates."""
    net = NETWORKS[name].network(LIBRARY)
    shape = (2, 1, 28, 28) if name == "mlp" else (2, 3, 64, 64)
    x, labels = mg.input("x", shape), mg.input("labels", (2,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
    return [x, labels], loss, updates


def train(options, name):
    return compile(options, *step(name))


def test_few_kernels_serve_all_networks(compiled):
    assert 30 < len(compiled[0]) < 300


def adam(step):
    """Return of how many parameters each generated kernel does the update."""
    counts = (kernel.ops.count("sqrt") for kernel in step.report().kernels)
    return sorted(count for count in counts if count)


def test_all_updates_of_a_network_but_those_of_large_weights_are_gathered(compiled):
    """ResNet-50 has 161 parameters, three of 9 MiB; AlexNet 16, of which five sum a gradient."""
    _, functions = compiled
    for dtype in ("float32", "bfloat16"):
        assert adam(functions["resnet50", dtype]) == [1, 1, 1, 158]
    assert adam(functions["alexnet", "float32"]) == [1] * 8 + [8]


def test_activations_may_wait_in_bfloat16(compiled):
    _, functions = compiled
    records = functions["resnet20", "saved in bfloat16"].report().passes
    (fired,) = [record.fired for record in records if record.name == "narrow_saved_activations"]
    assert fired["stored by a kernel"] > 30


@pytest.mark.parametrize("arch", mostly_long(ARCHITECTURES, 0))
def test_every_kernel_compiles(compiled, arch):
    assert nvrtc.compile_program(cuda_on_cpu.program(compiled[0]), arch).startswith(b"\x7fELF")
