"""Networks compiled for a CUDA device as the benchmarks train them; NVRTC accepts all kernels."""

import functools

import cuda_on_cpu
import pytest

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.autotune.candidate import Candidate
from minigraph.bench import cases
from minigraph.bench.cases import EXPRESSIONS, NETWORKS
from minigraph.bench.ours import LIBRARY, training
from minigraph.devices.cuda.kernel import LibraryKernel

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("cudnn")
import cublas_library
from cuda_stand_in import StandIn, open_instead
from long_runs import ARCHITECTURES, long

from minigraph.devices.cuda import cublas_kernel, cudnn_kernel, nvrtc
from minigraph.devices.cuda import device as device_module

PRODUCTS = {module: module.product for module in (cublas_kernel, cudnn_kernel)}  # hidden there


class NoUploads(StandIn):
    """A device that need not have the values of parameters, which take gigabytes."""

    def upload(self, to, source, stream):
        pass


@pytest.fixture(scope="module")
def sources():
    """The kernels that functions ask for, by name: they are compiled for a stand-in."""
    texts = {}

    def load(requested, driver, on_disk):
        texts.update((source.name, source) for source in requested)
        return {source.name: 0 for source in requested}

    with pytest.MonkeyPatch.context() as patch:
        open_instead(patch, NoUploads(), load)
        yield texts
        network.cache_clear()


def compiled(inputs, outputs, updates=None, level=3, **options):
    options = {"graph_opt_level": level, "autotune": "off", **options}
    return mg.comp_graph("cuda", options).compile(inputs, outputs, updates)


@functools.cache
def network(name):
    """Return inputs, loss and updates of a training step."""
    net = NETWORKS[name].network(LIBRARY)
    shape = (2, 1, 28, 28) if name == "mlp" else (2, 3, 64, 64)
    x, labels = mg.input("x", shape), mg.input("labels", (2,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
    return [x, labels], loss, updates


@pytest.mark.parametrize(
    ("name", "amp", "counts"),
    [("resnet50", "bfloat16", [1, 1, 1, 158]), ("alexnet", "off", [1] * 8 + [8])],
)
def test_all_updates_of_a_network_but_those_of_large_weights_run_in_one_kernel(
    sources, name, amp, counts
):
    """ResNet-50 has 161 parameters, three of 9 MiB; AlexNet 16, of which five sum a gradient."""
    kernels = compiled(*network(name), amp=amp).report().kernels
    assert sorted(filter(None, (kernel.ops.count("sqrt") for kernel in kernels))) == counts


class CudnnStandIn(LibraryKernel):
    """A kernel as those of cuDNN are, which is only bound."""

    maker = "cudnn"

    def __init__(self):
        super().__init__(None, ())

    def enqueue(self, inputs, outputs, scratch, stream):
        raise NotImplementedError


@pytest.fixture
def libraries(sources, monkeypatch):
    """Let there be cuDNN and cuBLAS; all that NumPy would compute is then warned of."""
    for module, product in PRODUCTS.items():
        monkeypatch.setattr(module, "product", product)
    monkeypatch.setattr(device_module, "MIN_WARNED_OPERATIONS", 0)
    monkeypatch.setattr(device_module, "warn_once", lambda text, cause: pytest.fail(text))
    cublas_library.instead(monkeypatch)

    def candidates(arrangement, catalogue, exactness):
        yield Candidate("engine", arrangement.layouts, CudnnStandIn)

    monkeypatch.setattr(cudnn_kernel, "candidates", candidates)


# A short run has each network with one of the two; ResNet-50 has convolutions of MobileNetV2 and
# all else of ResNet-18.
WITH_AMP = [
    (name, amp) if i % 2 == j and name != "resnet50" else long(name, amp)
    for i, name in enumerate(NETWORKS)
    for j, amp in enumerate(("off", "bfloat16"))
]


@pytest.mark.parametrize(("name", "amp"), WITH_AMP)
def test_no_step_of_a_network_runs_in_numpy(libraries, name, amp):
    case = cases.case(name, batch_size=2, quick=True, device="cuda")
    cg = mg.comp_graph("cuda", {"autotune": "off", "amp": amp})
    step, _ = training(cg, case, case.network(LIBRARY))
    report = step.report()
    assert not report.numpy
    assert report.makers["cublas"] + report.makers["cudnn"] > 0


@pytest.mark.parametrize("length", [3, None])
@pytest.mark.parametrize("level", [0, 3])
def test_a_recurrent_layer_is_unrolled(sources, level, length):
    net, x = nn.GRU(4, 5), mg.input("x", (length, 2, 4))
    loss = ops.sum(net(x)[0])
    step = compiled([x], [loss, *mg.grad(loss, [*net.parameters()])], level=level)
    if length:
        report = step.report()
        assert report.ops["scan"] == 0
        assert report.ops["matmul"] >= 2 * length


@pytest.mark.long
def test_few_kernels_serve_all_networks_and_nvrtc_compiles_them(sources):
    for level in (0, 3):
        for expression in EXPRESSIONS.values():
            inputs = [mg.input(f"x{i}", s) for i, s in enumerate(expression.shapes)]
            compiled(inputs, expression.formula(ops, *inputs), level=level)
        for name in ("mlp", "alexnet", "resnet50"):
            compiled(*network(name), level=level)
    compiled(*network("resnet50"), amp="bfloat16")
    assert 30 < len(sources) < 300
    for arch in ARCHITECTURES:
        cubin = nvrtc.compile_program(cuda_on_cpu.program([*sources.values()]), arch)
        assert cubin.startswith(b"\x7fELF")
