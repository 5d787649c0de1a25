"""The system's C compiler: it turns sources into loaded functions.

Kernels that no cache has are divided among as many compiler runs as the machine has CPUs.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from minigraph import options as settings
from minigraph.cache.machine import processor
from minigraph.devices.cpu import elf, library, onednn, openmp
from minigraph.devices.kernel_cache import (
    CompilationUnit,
    CompiledUnit,
    KernelCache,
    working_folder,
)
from minigraph.errors import CompileError, install_command, reason, warn_once
from minigraph.jit.c.prelude import PRELUDE
from minigraph.jit.c.vector_math import EACH_KIND, vector_functions, vector_math
from minigraph.jit.source import KernelSource, digest
from minigraph.platform import toolchain

FLAGS = (
    "-std=gnu11",
    # As fast as -O3 for these kernels, in two thirds of the compile time.
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model",  # "dynamic"; clang has this name only
    "-march=native",
    # Flags of CC could change bits, or link a library that flushes denormals.  Intel's compiler,
    # which is a clang, by default assumes that no number is NaN or infinite.
    "-fno-fast-math",
    "-fno-unsafe-math-optimizations",
    "-fno-finite-math-only",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",  # integers wrap around, as NumPy's do
    "-ffp-contract=off",  # a product is fused with a sum only where the graph says fma
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-Werror=vla",  # the stack that a kernel needs does not depend on shapes
)
# With these optimisations gcc compiles nested conditional expressions, or those of calls, to
# branches, so it does not vectorise the loop, which takes 15 to 80 times as long.
GCC_FLAGS = ("-fno-tree-pre", "-fno-tree-sink", "-fno-thread-jumps")
ICX_FLAGS = ("-ffp-model=precise",)
# On many processors compilers prefer vectors of 256 bits, although 512 bits are as fast or faster.
WIDE_VECTORS = "-mprefer-vector-width=512"
# Parallel regions of kernels go through functions of the prelude.
LINKER_WRAPS = ("-Wl,--wrap=GOMP_parallel", "-Wl,--wrap=GOMP_parallel_loop_nonmonotonic_dynamic")
# Clang may lack omp.h, and has another OpenMP library: CLANG_OMP takes the place of both.
# Without -g0 zig writes the name of the folder into its results.  Without optimisation it checks
# for undefined behaviour, and ends the process for a sum of a null pointer and a number.
CLANG_OPENMP = ("-Xclang", "-fopenmp", "-I.", "-g0", "-fno-sanitize=undefined")
CLANG_OMP = Path(__file__).with_name("clang_omp.h").read_text()
# The pragma for a loop with independent iterations, of gcc and of clang.
IVDEP_PRAGMAS = ("#pragma GCC ivdep", "#pragma clang loop vectorize(assume_safety)")
# The features of each instruction set that -mno- removes from -march=native, with later features.
ISA_FEATURES = {onednn.AVX: ("avx",), onednn.AVX2: ("avx2", "fma"), onednn.AVX512: ("avx512f",)}
COMPILE_TIMEOUT = 120.0  # time limit of one run of the compiler
OTHER_BACKENDS = {  # of MINIGRAPH_JIT_BACKEND
    "none": "MINIGRAPH_JIT_BACKEND is none",
    "nvrtc": "MINIGRAPH_JIT_BACKEND is nvrtc, which is for CUDA devices",
}
HALIDE_PACKAGES = ("halide", "pycparser")  # packages that the Halide backend needs
NO_COMPILER = "there is no C compiler"
MIN_UNIT_LENGTH = 4000  # characters of sources that compile as long as the headers of a unit


class _Compiler(NamedTuple):
    """A compiler's command, which begins with an absolute path, and its version."""

    command: tuple[str, ...]
    version: str


@functools.cache
def _compiler() -> _Compiler | None:
    """Return the C compiler; warn once and return None without one.

    Raises CompileError if `CC` names a compiler that does not run.
    """
    cc = toolchain.c_compiler()
    if cc:
        return _compiler_from_cc(cc)
    path = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc") or toolchain.zig()
    if path is None:
        run = "elementwise ops and reductions run in NumPy, several times slower"
        if settings.jit_backend() in ("", "halide") and not why_no_halide():
            run = "Halide compiles elementwise ops and reductions, NumPy runs other ops"
        warn_once(
            f"no C compiler was found; {run}: install gcc (Debian: apt-get install gcc libc6-dev), "
            f"or {install_command('compiler')}",
            cause=NO_COMPILER,
        )
        return None
    command = (os.path.abspath(path), *(("cc",) if path == toolchain.zig() else ()))
    return _Compiler(command, _version(command)[0])


def _compiler_from_cc(cc: str) -> _Compiler:
    """Return the compiler that `CC` names: a path, or a program with arguments as in a shell."""
    path, arguments, version = shutil.which(cc), [], ""
    try:
        if path is None:
            name, *arguments = shlex.split(cc) or [""]
            path = shutil.which(name)
        why = "the program was not found"
        if path is not None:
            version, why = _version((os.path.abspath(path), *arguments))
    except ValueError as error:  # a quotation mark that is left open
        why = str(error)
    if path is None or why:
        raise CompileError(
            f"CC is {cc!r}, which does not run ({why}): set it to a C compiler, such as gcc or "
            '"ccache gcc", or unset it'
        )
    return _Compiler((os.path.abspath(path), *arguments), version)


def _version(command: Sequence[str]) -> tuple[str, str]:
    """Return the first line of a compiler's version, and why it does not run, or ""."""
    try:
        process = subprocess.run(
            [*command, "--version"],
            env=toolchain.environment(command[0], tempfile.gettempdir()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "unknown", reason(error)
    why = ""
    if process.returncode:
        lines = [*process.stderr.split("\n"), f"its exit status is {process.returncode}"]
        why = next(line for line in lines if line.strip())
    return (process.stdout.splitlines() or ["unknown"])[0], why


@functools.cache
def compiler() -> str | None:
    """Return the command of the C compiler in one line, or None without one.

    Raises CompileError if `CC` names a compiler that does not run.
    """
    found_compiler = _compiler()
    return shlex.join(found_compiler.command) if found_compiler else None


def compiler_version() -> str:
    """Return the first line of the compiler's version, or "none"."""
    found_compiler = _compiler()
    return found_compiler.version if found_compiler else "none"


@functools.cache
def compiler_name() -> str:
    """Return the compiler's name and version, such as "gcc 12.2.0", whatever its command is."""
    (path, *_), version = _compiler() or _Compiler(("none",), "none")
    description = f"{version} {os.path.basename(os.path.realpath(path))}"
    signs = {"clang": "clang", "oneAPI": "icx", "gcc": "gcc"}
    names = (name for sign, name in signs.items() if sign in description)
    numbers = re.findall(r"\d+(?:\.\d+)+", version)
    return " ".join([next(names, os.path.basename(path)), *numbers[-1:]])


def _is_icx() -> bool:
    return compiler_name().startswith("icx")


def is_clang() -> bool:
    """Whether the compiler is clang, or is built on clang and takes its flags."""
    return compiler_name().startswith("clang") or _is_icx()


@functools.cache
def why_no_halide() -> str:
    """Return why the Halide backend is not available; "" if it is."""
    if not elf.IS_SUPPORTED:
        return "Halide's kernels are for Linux on the x86-64"
    specs = {name: importlib.util.find_spec(name) for name in HALIDE_PACKAGES}
    # Without a file, only a folder of bytecode is left of a package that was removed.
    missing = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    if missing:
        return f"{missing[0]} is not installed: {install_command('halide')}"
    return ""


def why_no_jit() -> str:
    """Return why kernels cannot be generated for the CPU; "" if they can."""
    return OTHER_BACKENDS.get(settings.jit_backend()) or (NO_COMPILER if compiler() is None else "")


def _libraries() -> list[str]:
    if is_clang():
        return [*openmp.path(), "-lm"]
    return ["-lmvec", "-lm"] if vector_functions() else ["-lm"]


def excluded(features: Mapping[int, Sequence[str]]) -> list[str]:
    """Return the features of a compiler, given by instruction set, that oneDNN must not use."""
    lib = onednn.library()
    disabled = ~lib.instructions if lib else 0
    return [name for bits, names in features.items() if bits & disabled for name in names]


def flags() -> list[str]:
    """Return the compiler's flags.

    Kernels use only instructions that oneDNN may use, so ONEDNN_MAX_CPU_ISA limits both.
    """
    clang = is_clang()
    result = [*(ICX_FLAGS if _is_icx() else ()), *FLAGS, *(() if clang else GCC_FLAGS)]
    if clang:
        position = result.index("-fopenmp")
        result[position : position + 1] = CLANG_OPENMP
    if platform.machine() != "x86_64":
        return result
    disabled = excluded(ISA_FEATURES)
    if clang:  # zig's driver rejects -mno-
        disabling = (("-Xclang", "-target-feature", "-Xclang", f"-{name}") for name in disabled)
        return [*result, WIDE_VECTORS, *itertools.chain.from_iterable(disabling)]
    return [*result, WIDE_VECTORS, *LINKER_WRAPS, *(f"-mno-{name}" for name in disabled)]


@functools.cache
def environment() -> Mapping[str, str]:
    """Return the environment of machine code: compiler, flags, processor, and so on."""
    return {
        "compiler": compiler() or "none",
        "version": compiler_version(),
        "flags": " ".join([*flags(), *_libraries()]),
        "toolchain": toolchain.settings(),
        "processor": processor(),  # -march=native
        "prelude": digest(PRELUDE, CLANG_OMP, *IVDEP_PRAGMAS),
        "vector math": digest(*vector_functions(), vector_math(EACH_KIND)),
    }


Process = subprocess.Popen[bytes]  # the leader of a process group


def run_commands(
    commands: Mapping[str, Sequence[str]],
    folder: Path,
    variables: Mapping[str, str],
    max_processes: int,
    timeout: float,
) -> dict[str, str]:
    """Run commands in a folder; return the output of each that failed, "" for the others.

    commands       by name; the output goes to the file `name`.log
    variables      environment variables
    max_processes  commands that may run at the same time
    timeout        time limit of each; after a timeout no further command starts
    """
    outputs = dict.fromkeys(commands, "not started: an earlier command did not end")
    waiting, running = deque(commands), deque[tuple[str, Process, float]]()
    try:
        while waiting or running:
            if waiting and len(running) < max_processes:
                name, deadline = waiting.popleft(), time.monotonic() + timeout
                # Not a pipe, which can fill up, and which a grandchild can hold open.
                with open(folder / f"{name}.log", "wb") as log:
                    try:
                        process = subprocess.Popen(
                            commands[name],
                            cwd=folder,
                            env=variables,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                        running.append((name, process, deadline))
                    except OSError as error:
                        outputs[name] = str(error)
                continue
            name, process, deadline = running[0]
            try:
                status = process.wait(max(deadline - time.monotonic(), 0))
                outputs[name] = _failure(status, folder / f"{name}.log") if status else ""
            except subprocess.TimeoutExpired:
                outputs[name] = f"did not end within {timeout:g} seconds"
                waiting.clear()
            _end(process)
            running.popleft()
    finally:
        for _, process, _ in running:
            _end(process)
    return outputs


def _failure(status: int, log: Path) -> str:
    output = log.read_text(errors="replace").strip()
    return output or (f"killed by signal {-status}" if status < 0 else f"exit status {status}")


def _end(process: Process) -> None:
    """Kill a process and its children if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class CKernels(KernelCache):
    """The kernels of the CPU; functions are addresses, all 0 without a compiler."""

    min_unit_length = MIN_UNIT_LENGTH

    def functions(self, sources: Sequence[KernelSource], on_disk: bool = True) -> dict[str, int]:
        if compiler() is None or not library.can_load_code():
            return {source.name: 0 for source in sources}
        return super().functions(sources, on_disk)

    def environment(self) -> Mapping[str, str]:
        return environment()

    def compile(self, units: Sequence[CompilationUnit]) -> Iterator[CompiledUnit]:
        c_compiler = _compiler()
        assert c_compiler is not None, "nothing is compiled without a compiler"
        with working_folder() as folder:
            commands: dict[str, list[str]] = {}
            compile_command = [*c_compiler.command, *flags()]
            clang = is_clang()
            if clang:
                (folder / "omp.h").write_text(CLANG_OMP)
            for unit in units:
                kernels = unit.text("")
                text = f"{PRELUDE}\n{vector_math(kernels)}{kernels}"
                name = f"mg_unit_{digest(text)[:16]}"
                source = text.replace(*IVDEP_PRAGMAS) if clang else text
                Path(folder, f"{name}.c").write_text(source)
                # Relative names, so that messages and objects are the same in every folder.
                files = [f"{name}.c", "-o", f"{name}.so"]
                commands[name] = [*compile_command, *files, *_libraries()]
            variables = toolchain.environment(c_compiler.command[0], str(folder))
            errors = run_commands(commands, folder, variables, settings.cpus(), COMPILE_TIMEOUT)
            for unit, name in zip(units, commands, strict=True):
                if errors[name]:
                    yield CompiledUnit(unit, error=errors[name])
                    continue
                try:
                    binary = (folder / f"{name}.so").read_bytes()
                    yield CompiledUnit(unit, binary, self.load(binary, unit.kernels))
                except (OSError, AttributeError) as error:
                    yield CompiledUnit(unit, error=str(error))

    def load(self, binary: bytes, kernels: Sequence[str]) -> list[int]:
        with suppress(OSError):  # the kernels of another compiler may need another library
            openmp.library()  # before the kernels load it
        loaded = library.load(binary)
        return [ctypes.cast(getattr(loaded, k), ctypes.c_void_p).value or 0 for k in kernels]

    def refuse(self, error: str) -> None:
        lines = error.splitlines()
        summary = next((line for line in lines if "error:" in line), error[:200])
        warn_once(
            f"{compiler()} could not compile kernels ({summary}); NumPy runs them instead",
            cause=f"not compiled: {summary.rpartition('error:')[2]}",  # without unit and line
        )


KERNELS = CKernels()
