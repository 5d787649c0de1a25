"""List the plans of cuDNN for the networks' convolutions on an H200, without a GPU.

    python tools/cudnn_plans.py [resnet50 ...] [--precisions bfloat16 ...] [--json FILE]

cuDNN's heuristics need a description of the device and a driver: cc compiles a driver that does
nothing.  Functions are compiled as for a device: a training step and the network in inference, at
levels 2 and 3, and with fast math, which may lose NaN.  Then all candidates of the tuner are built,
in each layout.  The exit status is 1 if a problem has no plan, or a plan cannot be built.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import minigraph as mg
from minigraph import ops, optim
from minigraph.bench import cases
from minigraph.bench.ours import LIBRARY
from minigraph.errors import GraphError

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

H200 = {
    "version": 1,
    "deviceName": "NVIDIA H200",
    "deviceVer": 900,
    "driverVer": 13000,
    "cudaDeviceId": 0,
    "pciDeviceId": 0,
    "multiProcessorCount": 132,
    "smCountOrigin": 0,
    "warpSize": 32,
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "maxCtasPerSM": 32,
    "regsPerBlock": 65536,
    "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "oversizedSharedMemoryPerBlock": 0,
    "reservedSharedMemoryPerBlock": 1024,
    "l2CacheSize": 62914560,
    "totalGlobalMem": 150754820096,
    "memoryBusWidth": 6144,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
}

NETWORKS = ("alexnet", "resnet18", "resnet50")
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
OPTIONS = (
    {"graph_opt_level": 2},
    {"graph_opt_level": 3},
    {"graph_opt_level": 2, "graph_opt.fast_math": True},
)
NO_NAN = ", no NaN"  # suffix of problems whose relu may be cuDNN's
LIMIT = 1 << 28  # bytes: larger memory is not allocated, and nothing touches it


def stand_in_for_the_driver(folder):
    """Load a libcuda.so.1 that does nothing; later loads of that name return it."""
    library = folder / "libcuda.so.1"
    source = TESTS / "cuda_without_device.c"
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("no C compiler (cc) to compile a driver without a device: install one")
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", library]
    subprocess.run(command, check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


@contextlib.contextmanager
def an_h200():
    """Make minigraph compile for an H200, with cuDNN except its execution; yield the patch.

    Products do not use cuBLAS, which needs a real driver.
    """
    import cudnn
    from cuda_stand_in import StandIn, open_instead

    from minigraph.devices.cuda import cublas_kernel

    class Device(StandIn):
        def allocate(self, nbytes):
            if nbytes > LIMIT:
                return SimpleNamespace(data=SimpleNamespace(ptr=1 << 40), nbytes=nbytes)
            return super().allocate(nbytes)

    properties = cudnn.create_device_properties(json.dumps(H200))
    graph = cudnn.pygraph

    def on_the_device(handle=None, **types):
        return graph(device_property=properties, sm_version=90, **types)

    def load(sources, driver, on_disk):
        return {source.name: 0 for source in sources}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cudnn, "pygraph", on_the_device)
        open_instead(patch, Device(), load, without_cudnn=False)
        patch.setattr(cublas_kernel, "product", lambda node: None)
        yield patch


def problems(patch, name, precision):
    """Return the convolution problems that the tuner would measure for a network, by subject."""
    from minigraph.devices.cuda.candidates import CudaProblems

    convolutions = {}
    original = CudaProblems.tunable

    def record(self, node, strides):
        tunable = original(self, node, strides)
        if tunable and "conv2d" in tunable.problem.subject:
            convolutions[tunable.problem.subject] = tunable.problem
        return tunable

    patch.setattr(CudaProblems, "tunable", record)
    case = cases.case(name, device="cuda")
    x = mg.input("x", (case.images, *case.shape))
    labels = mg.input("labels", (case.images,), "int64")
    net = case.network(LIBRARY)
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
    predicted = net.eval()(x)
    for options in OPTIONS:
        options = {**options, "autotune": "cached", **cases.PRECISIONS[precision].options}
        cg = mg.comp_graph("cuda", options)
        cg.compile([x, labels], loss, updates)
        cg.compile([x], predicted)
    return convolutions


class Plan(NamedTuple):
    """A candidate that was built: its bytes of workspace, and whether cuDNN compiled its kernel."""

    name: str
    workspace: int
    generated: bool

    @property
    def fused(self):
        """Whether cuDNN computes all of the problem, also the ops after the product."""
        return not self.name.startswith("unfused")


class Listing(NamedTuple):
    """A problem in some layouts: its plans, best first, errors of failed plans, and seconds."""

    subject: str
    layout: str
    plans: list
    failures: list
    list_seconds: float
    build_seconds: float


def listings(problem):
    """Build the plans of a problem in each of its layouts; yield a Listing for each."""
    for names, layouts in problem.layouts.items():
        start = time.perf_counter()
        candidates = [*problem.candidates(layouts)]
        listed = time.perf_counter()
        plans, failures = [], []
        for candidate in candidates:
            try:
                plan = candidate.kernel.plan
                plans.append(Plan(candidate.name, plan.workspace, plan.generated))
            except GraphError as error:
                failures.append(str(error))
        seconds = listed - start, time.perf_counter() - listed
        yield Listing(problem.subject, name_of(names), plans, failures, *seconds)


def name_of(names):
    """Return the layout of the images: "nchw", "nhwc" or "both"."""
    images = {*names} & {"nchw", "nhwc"}
    return "both" if len(images) == 2 else images.pop()


def row(network, precision, layout, problems):
    """Return the counts and times of the problems of a network in a layout."""
    plans = [plan for problem in problems for plan in problem.plans]
    relus = [problem for problem in problems if problem.subject.endswith(NO_NAN)]
    return {
        "network": network,
        "precision": precision,
        "layout": layout,
        "problems": len(problems),
        "without a plan": [problem.subject for problem in problems if not problem.plans],
        "not built": [error for problem in problems for error in problem.failures],
        "plans": len(plans),
        "generated": sum(plan.generated for plan in plans),
        "relus": len(relus),
        "relus fused": sum(any(plan.fused for plan in relu.plans) for relu in relus),
        "first workspace": sum(p.plans[0].workspace for p in problems if p.plans),
        "seconds to list": round(sum(p.list_seconds for p in problems), 2),
        "seconds to build": round(sum(p.build_seconds for p in problems), 2),
    }


def rows(network, precision):
    """Return the rows of a network, one for each layout."""
    with an_h200() as patch:
        convolutions = problems(patch, network, precision).values()
        built = [listing for problem in convolutions for listing in listings(problem)]
    return [
        row(network, precision, layout, [listing for listing in built if listing.layout == layout])
        for layout in dict.fromkeys(listing.layout for listing in built)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINIGRAPH_CACHE_DIR"] = folder  # without measurements of a device
        stand_in_for_the_driver(Path(folder))
        import cudnn

        from minigraph.devices.cuda.nvrtc import nvrtc_version

        results = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "device": H200["deviceName"],
            "cudnn": cudnn.backend_version_string(),
            "frontend": cudnn.__version__,
            "nvrtc": nvrtc_version(),
            "rows": [],
        }
        for network in args.networks or NETWORKS:
            for precision in args.precisions:
                results["rows"] += rows(network, precision)
    text = json.dumps(results, indent=1) + "\n"
    if args.json:
        args.json.write_text(text)
    else:
        print(text, end="")
    return int(any(row["without a plan"] or row["not built"] for row in results["rows"]))


if __name__ == "__main__":
    sys.exit(main())
