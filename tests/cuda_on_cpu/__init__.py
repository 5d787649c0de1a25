"""Launches of CUDA kernels, run on the CPU: their text, built with g++ and cuda_on_cpu.h."""

import ctypes
import functools
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from once import once

from minigraph.devices.kernel_cache import CompilationUnit
from minigraph.jit import small_float
from minigraph.jit.cuda.text import PRELUDE
from minigraph.jit.source import digest

HERE = Path(__file__).parent
HEADER = "cuda_on_cpu.h"
FLAGS = [
    *("-std=c++20", "-O0", "-w", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-fsanitize=alignment", "-fPIC"),
]
COMPILER = shutil.which("g++")
# What instructions of the device do there.
CONVERSIONS = "\n".join(
    dict.fromkeys(t for pair in small_float.CONVERSIONS for t in small_float.conversion(*pair)[1])
)
for small in ("float16", "bfloat16"):
    to = f"mg_{small}_of_float"
    pair = f"{to}(low) | (uint32_t){to}(high) << 16"
    CONVERSIONS += f"\ninline uint32_t mg_pack_{small}(float low, float high) {{ return {pair}; }}"
WORTH_A_RUN = 16  # kernels that take longer to compile than the header
_built = {}  # kernels by name, which is made of their text
MARGIN = 64  # bytes around an array in which nothing may be written


@functools.cache
def _header():
    """Return the name of the header when it is compiled, which tells all that this depends on."""
    version = subprocess.run([COMPILER, "-v"], capture_output=True, text=True).stderr
    return f"{digest((HERE / HEADER).read_text(), *FLAGS, version)}.h"


def program(sources):
    """Return the CUDA program of some kernels."""
    return CompilationUnit(tuple(dict.fromkeys(sources))).text(PRELUDE)


def build(sources, folder):
    """Return the kernels by name; those that are many are built by two runs of the compiler.

    What is built together depends on no earlier call, so that a later run finds the same libraries.

    folder  for libraries, which processes share
    """
    if any(source.name not in _built for source in sources):
        every = sorted(set(sources), key=lambda source: source.name)
        runs = min(2, -(-len(every) // WORTH_A_RUN))
        parts = [every[i::runs] for i in range(runs)]
        with ThreadPoolExecutor(2) as pool:
            for library in pool.map(functools.partial(_library, folder), parts):
                _built.update(library)
    return {source.name: _built[source.name] for source in sources}


def _library(folder, sources):
    """Return the kernels of a library by name."""
    launchers = (f"CUDA_ON_CPU({source.name})" for source in sources)
    text = "\n".join([f'#include "{_header()}"', CONVERSIONS, program(sources), *launchers])

    def compile(path):
        text_file, binary = path.with_suffix(".cpp"), path.with_suffix(".o")
        text_file.write_text(text)
        _gpp(*FLAGS, "-c", text_file, "-o", binary)
        _gpp("-shared", binary, "-o", path)  # without the sanitizer's library, as no flag asks
        text_file.unlink()
        binary.unlink()

    path = folder / f"{digest(text)}.so"
    if not path.exists():
        # Parsing the header for each library would take longer.
        header = ["-x", "c++-header", HERE / HEADER]
        once(folder / f"{_header()}.gch", lambda path: _gpp(*FLAGS, *header, "-o", path))
    library = ctypes.CDLL(str(once(path, compile)))
    kernels = {source.name: getattr(library, f"{source.name}_on_cpu") for source in sources}
    for kernel in kernels.values():
        kernel.restype = ctypes.c_char_p
    return kernels


def _gpp(*arguments):
    """Run g++."""
    command = [COMPILER, *arguments]
    process = subprocess.run(command, capture_output=True)
    assert not process.returncode, process.stderr.decode()[:2000]


def run(kernels, launches, inputs, outputs, scratch=0):
    """Run launches in order on arrays; outputs keep their memory."""
    room = np.full(scratch + 64, 0xA5, np.uint8)
    at = -(-room.ctypes.data // 64) * 64
    addresses = [[x.ctypes.data for x in xs] for xs in (inputs, outputs)]
    for launch in launches:
        words = np.array(launch.words(*addresses, at), np.int64)
        run_kernel(kernels[launch.source.name], words, launch.grid, launch.block)


def run_kernel(kernel, words, grid, block):
    """Run a kernel on the words of a launch."""
    sizes = [(ctypes.c_uint * 3)(*size) for size in (grid, block)]
    failed = kernel(ctypes.c_void_p(words.ctypes.data), *sizes)
    assert not failed, failed.decode()


def room(shape, dtype):
    """Return an array, aligned as device memory is, and a function that tells what is around it."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    whole = np.full(nbytes + 2 * MARGIN + 64, 0xA5, np.uint8)
    first = -(whole.ctypes.data + MARGIN) % 64 + MARGIN
    inside = np.ndarray(shape, dtype, whole, first)

    def untouched():
        around = np.concatenate([whole[:first], whole[first + nbytes :]])
        return bool((around == 0xA5).all())

    return inside, untouched
