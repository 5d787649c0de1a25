"""Fixtures of all tests."""

import functools
import gc
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import cuda_on_cpu
import kept_kernels
import pytest
import toy_device
from once import kept_folder, once
from small_functions import DEVICES

import minigraph as mg
from minigraph.devices.cpu import compiler, onednn
from minigraph.jit.source import digest

# Two processes of tests share two cores: a thread that spins takes the time of the other's threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
with warnings.catch_warnings(action="ignore"):  # each says once what is missing: no test's fault
    compiler.compiler()
    onednn.library()


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


def pytest_configure(config):
    """Keep bytecode for other processes and later runs, where Python writes none beside sources."""
    if sys.dont_write_bytecode and getattr(config, "cache", None):
        sys.dont_write_bytecode = False
        sys.pycache_prefix = str(config.cache.mkdir("bytecode"))
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_xdist_auto_num_workers(config):
    """Return how many processes run the tests: two for all, this one for some, or on a GPU."""
    every = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return 2 if every and "cuda" not in config.option.markexpr else 0


def pytest_collection_finish():
    """Exclude the collected tests, millions of objects, from garbage collections, and have fewer.

    Graphs are many small objects: with Python's own thresholds a quarter of the time went there.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory, worker_id):
    """A folder that all processes of this run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@pytest.fixture(scope="session", autouse=True)
def cache_folder(run_folder, pytestconfig):
    """Keep what this run makes in folders of its own; begin with the kernels of earlier runs.

    Those are in pytest's cache folder: `pytest --cache-clear` begins with none, and a mutant, whose
    kernels may have the names of others, runs without that folder.
    """
    folder = run_folder / "cache"
    cache = getattr(pytestconfig, "cache", None)  # none after `-p no:cacheprovider`
    kept = cache.mkdir("kernels") / "cache.db" if cache else None

    def begin(folder):
        folder.mkdir(0o700)
        if kept and kept.exists():
            kept_kernels.copy(kept, folder / "cache.db")

    once(folder, begin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIGRAPH_CACHE_DIR", str(folder))
        for name in ("WORKDIR", "KEEP_INTERM"):
            patch.delenv(f"MINIGRAPH_JIT_{name}", raising=False)
        if (
            os.environ.get("MINIGRAPH_JIT_BACKEND") != "halide"
        ):  # of which tests/jit is the test, too
            patch.delenv("MINIGRAPH_JIT_BACKEND", raising=False)
        if sys.dont_write_bytecode:  # which each process would make again
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(run_folder / "bytecode"))
        yield folder
    if kept and (folder / "cache.db").exists():
        kept_kernels.merge(folder / "cache.db", kept)


@pytest.fixture(scope="session")
def kept_libraries(run_folder, pytestconfig):
    """The folder of what the C compiler has made of a text, by the digest of both."""
    return kept_folder(pytestconfig, "libraries", run_folder / "libraries")


@pytest.fixture(scope="session")
def build_cuda(run_folder, pytestconfig):
    """Return a function that builds CUDA kernels with g++, and returns them by name."""
    folder = kept_folder(pytestconfig, "cuda", run_folder / "cuda")
    return functools.partial(cuda_on_cpu.build, folder=folder)


STRICT = (
    "-Werror=implicit-function-declaration",
    "-Werror=int-conversion",
    "-Werror=incompatible-pointer-types",
)


_reuse = {"libraries": True}  # of kernels in a test's own cache


@pytest.fixture
def compiles_anew(monkeypatch):
    """Let the compiler run for each text: it is what the test is of."""
    monkeypatch.setitem(_reuse, "libraries", False)


@pytest.fixture(scope="session", autouse=True)
def small_frames(cache_folder, kept_libraries):
    """Let no kernel compile that puts more than 64 KiB on the stack; the warning is an error.

    With QUICK no two variables share a place there.  Newer compilers refuse what STRICT refuses.
    Tests that begin with an empty cache get what the same command has made of the same text.
    """
    run, usual = compiler.run_commands, compiler.compiler()
    version = compiler.compiler_version()

    def checked(commands, folder, *others):
        flags = ("-Werror=frame-larger-than=65536", *STRICT)
        limited = {n: [*c, *flags] if QUICK not in c else c for n, c in commands.items()}
        in_shared_cache = os.environ.get("MINIGRAPH_CACHE_DIR") == str(cache_folder)
        if compiler.compiler() != usual or in_shared_cache or not _reuse["libraries"]:
            return run(limited, folder, *others)
        made = {}
        for name, command in limited.items():
            text = (folder / f"{name}.c").read_text()
            made[name] = kept_libraries / f"{digest(version, *command, text)}.so"
        found = {name for name, path in made.items() if path.exists()}
        outputs = run({n: c for n, c in limited.items() if n not in found}, folder, *others)
        for name, path in made.items():
            library = folder / f"{name}.so"
            if name in found:
                shutil.copy(path, library)
                os.utime(path)
            elif not outputs[name]:
                once(path, functools.partial(shutil.copy, library))
        return dict.fromkeys(limited, "") | outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "run_commands", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_compiler(worker_id):
    """Compile the kernels of a function in one run: other processes of tests use the other cores.

    Each run of the compiler begins with the same headers.
    """
    with pytest.MonkeyPatch.context() as patch:
        if worker_id != "master":
            patch.setattr(compiler.CKernels, "min_unit_length", sys.maxsize)
        yield


# The tests of these parts are not of kernels, and bear another last bit: here gcc takes a third of
# the time.  Left out are also those that compare with what another process computes.
QUICK = "-Og"
WITHOUT_KERNELS = (
    *("bench", "compiler", "data", "debug", "graph", "inspect", "nn", "onnx", "optim"),
    *("program", "pytorch", "runtime", "passes/library", "ops/test_scan"),
    *("ops/test_array", "ops/test_advanced", "ops/test_observation", "ops/test_interpolation"),
    *("test_autodiff", "test_docs", "test_torch_hints"),
)
_quickly_compiled = {}  # functions by name, apart from those of the same kernels with all flags


@pytest.fixture(scope="module", autouse=True)
def quick_compiler(request):
    """Compile the kernels of WITHOUT_KERNELS with little optimisation."""
    part = request.path.relative_to(Path(__file__).parent).as_posix()
    if not part.startswith(WITHOUT_KERNELS):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "FLAGS", (*compiler.FLAGS, QUICK))
        patch.setattr(compiler.KERNELS, "_functions", _quickly_compiled)
        compiler.environment.cache_clear()
        yield
    compiler.environment.cache_clear()


toy_device.register()


@pytest.fixture(params=DEVICES)
def device(request):
    """Each device that computes on this machine's processor."""
    return request.param


@pytest.fixture
def cg(device):
    return mg.comp_graph(device)


@pytest.fixture(scope="session")
def torch():
    """PyTorch, which a test compares with."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def pillow():
    """Pillow, whose images a test makes."""
    return pytest.importorskip("PIL.Image")


@pytest.fixture
def no_private_group(monkeypatch):
    """Treat the group of the tests' user as one with other members."""
    monkeypatch.setattr("minigraph.platform.trust._is_private_group", lambda group, user: False)


@pytest.fixture
def ctrl_c():
    """Let SIGINT raise KeyboardInterrupt; the shell of a run in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def nowhere(tmp_path):
    """A path that cannot exist, even for root: it leads through a file."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "nothing"


@pytest.fixture
def promptly():
    """End reads that block: a pipe without a writer, a device without an end."""

    def stop(number, frame):
        raise AssertionError("this took longer than 5 seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
