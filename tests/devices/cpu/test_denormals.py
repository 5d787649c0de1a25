"""Denormals are flushed to zero while a function runs, and only then."""

import ctypes
import shlex
import subprocess
import threading

import numpy as np
import pytest
from needs import needs_both

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.cpu import compiler, openmp

pytestmark = needs_both
USUAL = 0x1F80  # the settings with which a process begins
FLUSHING = 0x8040  # of x86-64's MXCSR: results (FTZ), and operands (DAZ)
TEXT = """
#include <omp.h>
void settings(unsigned *seen, int set, unsigned value) {
  #pragma omp parallel for num_threads(4) schedule(static, 1)
  for (int i = 0; i < 4; i++) {
    if (set) __builtin_ia32_ldmxcsr(value);
    seen[i] = __builtin_ia32_stmxcsr() & 0x8040;
  }
}
"""


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """A function: the settings of four threads of a library that uses OpenMP."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "library.c").write_text(TEXT)
    flags = ["-fopenmp", "-shared", "-fPIC", "library.c", "-o", "library.so"]
    command = [*shlex.split(compiler.compiler()), *flags]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip("this processor has other settings")
    openmp.library()
    library = ctypes.CDLL(str(folder / "library.so"))

    def settings(value=None):
        seen = np.zeros(4, np.uint32)
        set_ = value is not None
        library.settings(seen.ctypes.data_as(ctypes.c_void_p), set_, ctypes.c_uint(value or 0))
        return seen.tolist()

    settings(USUAL | FLUSHING)
    if settings() != [FLUSHING] * 4:
        pytest.skip("this OpenMP library resets the settings of its threads, as clang's does")
    settings(USUAL)
    return settings


def functions(level, threads):
    """Yield functions of different kernels, and arguments; the last one fails."""
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "num_threads": threads})
    x, ok = mg.input("x", (3, 50_000)), mg.input("ok", (), "bool")
    value = np.ones(x.shape, np.float32)
    yield cg.compile([x], ops.exp(x) * 2), [value]
    yield cg.compile([x], ops.sum(x, axis=1)), [value]  # by three threads, of four too
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16384, 9)
    )
    image = mg.input("image", (4, 3, 32, 32))
    loss = net(image).mean()
    step = cg.compile([image], loss, optim.Adam(net.parameters()).minimize(loss))
    yield step, [np.ones(image.shape, np.float32)]
    yield cg.compile([x, ok], ops.check(ok, "it is not", ops.exp(x) @ x.T)), [value, False]


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("level", [0, 3])
def test_threads_of_other_libraries_keep_their_settings(level, threads, team):
    compiled = list(functions(level, threads))

    def check():
        for before in (0, FLUSHING):
            assert team(USUAL | before) == [before] * 4
            for function, arguments in compiled[:-1]:
                function(*arguments)
                assert team() == [before] * 4
            with pytest.raises(mg.GraphError, match="it is not"):
                compiled[-1][0](*compiled[-1][1])
            assert team() == [before] * 4
        team(USUAL)
        checked.append(threading.current_thread())

    checked = []
    check()
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert len(checked) == 2


@pytest.mark.parametrize("level", [0, 3])
def test_all_threads_flush_denormals_in_every_kernel(level):
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "num_threads": 2})
    x, w = mg.input("x", (400, 400)), mg.input("w", (400, 400))
    tiny = np.full(x.shape, 1e-39, np.float32)
    halves, product = cg.compile([x, w], [x * 0.5, x @ w])(tiny, np.eye(400, dtype=np.float32))
    assert not halves.any()
    assert not product.any()
