"""The command line: `minigraph info`, `run`, `bench`, `view`, `diff`, `cache` and `onnx`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NoReturn

import numpy as np

import minigraph as mg
from minigraph import options as settings
from minigraph.arguments import shorten
from minigraph.autotune.measurement import merge
from minigraph.bench import command as bench
from minigraph.cache import KINDS, Entry, Store, database, file
from minigraph.cache.machine import processor
from minigraph.devices.cpu import compiler, halide_compiler, library, onednn
from minigraph.devices.factory import check_device
from minigraph.errors import CacheError, CompileError, DeviceError, GraphError, warn_once
from minigraph.inspect.report import align_columns, bytes_text
from minigraph.runtime import view
from minigraph.version import __version__

CUDA_PACKAGES = (
    "cupy-cuda13x",
    "cuda-python",
    "nvidia-cublas",
    "nvidia-cuda-nvrtc",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
)
COLUMNS = 80  # of the headings of entries


@dataclass(frozen=True)
class Answer:
    """The result of a command, as data for `--json` and as lines for a person."""

    data: dict[str, Any]
    lines: Sequence[str]
    status: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; an invalid command line exits with status 2."""
    arguments, unknown = _parser().parse_known_args(argv)
    if unknown:
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer: Answer = arguments.run(arguments)
        for warning in caught:
            print(f"minigraph: {warning.message}", file=sys.stderr)
        text = json.dumps(answer.data, indent=1) if arguments.json else "\n".join(answer.lines)
    except (GraphError, ImportError, OSError) as error:
        print(f"minigraph: {error}", file=sys.stderr)
        return 1
    try:
        print(_printable(text), flush=True)
    except OSError as error:
        # At its end Python would write the buffered text again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader, `head` for one, has ended
            print(f"minigraph: {error}", file=sys.stderr)
        return 1
    return answer.status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> _Parser:
    kinds, saved, path = (_Parser(add_help=False) for _ in range(3))
    kinds.add_argument("--kind", choices=KINDS, help="entries of this kind only; default: all")
    saved.add_argument("file", metavar="FILE", nargs="?", help="a cache file; default: the folder")
    path.add_argument("file", metavar="FILE")
    parser = _Parser("minigraph", description="Show the machine, measure speed, look inside.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[..., Answer], about: str, *parents: _Parser) -> _Parser:
        command: _Parser = commands.add_parser(name, parents=parents, help=about, description=about)
        command.add_argument("--json", action="store_true", help="print one JSON object")
        command.set_defaults(run=run, parser=command)
        return command

    about = (
        "show versions, processor, libraries and settings, or what a model of ONNX is; status 1 if "
        "CC or the device cannot be used"
    )
    machine = add("info", _info, about)
    machine.add_argument("file", metavar="MODEL", nargs="?", help="a model, such as model.onnx")
    model = add("run", _run, "run a model of ONNX on arrays from files")
    model.add_argument("file", metavar="MODEL", help="such as model.onnx")
    about = "an array in a file .npy: one for each input, in the order of the model"
    model.add_argument("--input", metavar="PATH", action="append", default=[], help=about)
    model.add_argument("--out", metavar="PATH", help="a file .npz for the results")
    model.add_argument("--device", default="cpu", help="cpu by default")
    model.add_argument("--level", type=int, default=3, help="graph_opt_level, 3 by default")
    about = "measure the levels beside each other, PyTorch and JAX"
    bench.add_arguments(add("bench", lambda arguments: Answer(*bench.bench(arguments)), about))
    view.add_view(add("view", _view, "open the page of a function in the browser"))
    view.add_diff(
        add("diff", lambda arguments: Answer(*view.diff(arguments)), "compare two functions")
    )
    cache = commands.add_parser("cache", help="show or change the caches")
    onnx = commands.add_parser("onnx", help="show the support for ONNX")
    commands = cache.add_subparsers(required=True, metavar="COMMAND")
    add("info", _cache_info, "show the folder, its size, and whether it is used")
    add("list", _list, "list entries, each with its environment and its size", saved, kinds)
    add("verify", _verify, "list damaged entries; status 1 if there are any")
    add("export", _export, "write entries to a file, beside those it holds", path, kinds)
    add("import", _import, "add a file's entries; status 1 if all are rejected", path, kinds)
    add("clear", _clear, "remove entries", kinds)
    commands = onnx.add_subparsers(required=True, metavar="COMMAND")
    about = "list the supported operators of ONNX"
    add("operators", lambda arguments: Answer(*mg.onnx.command.operators()), about)
    return parser


def _info(arguments: argparse.Namespace) -> Answer:
    if arguments.file:
        return Answer(*mg.onnx.command.describe(arguments.file))
    onednn_library, folder = onednn.library(), settings.cache_folder()
    cc, cc_error, problems = None, compiler.NO_COMPILER, []
    try:
        cc, jit = compiler.compiler(), _jit()
    except CompileError as error:
        cc_error, jit = "CC does not run", "none: CC does not run"
        problems.append(str(error))
    problems += filter(None, [_device_error(settings.default_device())])
    for problem in problems:  # no error, because the table may show the cause
        warn_once(problem)
    data: dict[str, Any] = {
        "minigraph": __version__,
        "device": settings.default_device(),
        "processor": processor(),
        "cpus": settings.cpus(),
        "threads": settings.num_threads(None),
        "numpy": np.__version__,
        "onednn": onednn_library.version if onednn_library else None,
        "amp": "bfloat16" if onednn_library and onednn.BFLOAT16 in onednn.dtypes() else None,
        "compiler": cc,
        "compiler_version": compiler.compiler_version() if cc else None,
        "jit": jit,
        **_jit_backends("" if cc else cc_error),
        "cache_folder": str(folder) if folder else None,
        "cuda_packages": {name: _version(name) for name in CUDA_PACKAGES},
        "options": settings.from_environment(),
    }
    packages, options = _words(data["cuda_packages"]), _words(data["options"], "=")
    texts = {**data, "cuda_packages": packages, "options": options}
    rows = [(name.replace("_", " "), str(v or "none")) for name, v in texts.items()]
    return Answer(data, align_columns(rows), status=int(bool(problems)))


def _jit_backends(cc_error: str) -> dict[str, str]:
    """Return the features of each JIT backend, or why it is not available."""
    errors = {"jit_c": cc_error, "jit_halide": compiler.why_no_halide()}
    errors["jit_nvrtc"] = _device_error("cuda")
    features = "binary cache, reuse for other shapes, non-contiguous input, reductions"
    return {name: f"none: {error}" if error else features for name, error in errors.items()}


def _device_error(device: str) -> str:
    """Return why a device cannot be used; "" if it can."""
    try:
        check_device(device)
    except DeviceError as error:
        return str(error)
    return ""


def _jit() -> str:
    if halide_compiler.is_selected():
        return f"{settings.jit_backend() or 'auto'} (halide {_version('halide')})"
    error = compiler.why_no_jit()
    if not (error or library.can_load_code()):
        error = "no machine code can be loaded"
    if error:
        return f"none: {error}"
    return f"{settings.jit_backend() or 'auto'} ({compiler.compiler_name()})"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _run(arguments: argparse.Namespace) -> Answer:
    options = arguments.input, arguments.out, arguments.device, arguments.level
    return Answer(*mg.onnx.command.run(arguments.file, *options))


def _view(arguments: argparse.Namespace) -> Answer:
    is_model = arguments.file.endswith(".onnx")
    functions = (mg.onnx.command.called_function(arguments.file).describe(),) if is_model else None
    return Answer(*view.view(arguments, functions))


# ---------------------------------------------------------------- the caches


def _cache_info(arguments: argparse.Namespace) -> Answer:
    store = _store()
    entries = store.entries(*KINDS)
    counts, sizes = Counter(entry.kind for entry in entries), Counter[str]()
    blobs = {entry.blob for entry in entries}  # kernels that were compiled together share one
    for entry in entries:
        sizes[entry.kind] += len(entry.body)
    sizes["jit"] += sum(map(len, blobs))
    reason = store.unsafe()
    data = {
        "folder": str(store.root),
        "trusted": not reason,
        "reason": reason,
        "schema": database.SCHEMA,
        "kinds": {kind: {"entries": counts[kind], "bytes": sizes[kind]} for kind in KINDS},
    }
    rows = [("folder", str(store.root)), ("trusted", f"no: {reason}" if reason else "yes")]
    rows.append(("schema", str(database.SCHEMA)))
    rows += [(kind, f"{_number(counts[kind])}, {bytes_text(sizes[kind])}") for kind in KINDS]
    return Answer(data, align_columns(rows))


def _list(arguments: argparse.Namespace) -> Answer:
    kinds, rejected = _kinds(arguments), list[tuple[str, str]]()
    if arguments.file:
        contents = file.read(arguments.file)
        entries = [e for kind in kinds for e in contents.entries if e.kind == kind]
        rejected = contents.rejected
    else:
        entries = _store().entries(*kinds)
    data = {
        "entries": [
            {
                "kind": entry.kind,
                "subject": entry.subject,
                "environment": dict(entry.environment),
                "bytes": _size(entry),
            }
            for entry in entries
        ],
        "rejected": _named(rejected),
    }
    lines = [*_listed(entries), *(f"{name}: {reason}" for name, reason in rejected)]
    return Answer(data, lines or ["no entries"], int(bool(rejected) and not entries))


def _listed(entries: Iterable[Entry]) -> list[str]:
    """Return a paragraph for each kind and environment, with a line for each entry."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.kind, entry.environment), []).append(entry)
    lines: list[str] = []
    for (kind, environment), group in groups.items():
        words = _words({name: shorten(value, 24) for name, value in environment if value})
        title = f"{kind}, {_number(len(group))}: {words}"
        lines += textwrap.wrap(title, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
        lines += [f"  {bytes_text(_size(entry)):>11}  {entry.subject}" for entry in group]
    return lines


def _verify(arguments: argparse.Namespace) -> Answer:
    damaged = _store().verify()
    lines = [f"{name}: {reason}" for name, reason in damaged]
    return Answer({"damaged": _named(damaged)}, lines or ["nothing is damaged"], int(bool(damaged)))


def _export(arguments: argparse.Namespace) -> Answer:
    entries = _store().entries(*_kinds(arguments))
    file.write(arguments.file, {"minigraph": __version__}, entries, merge)
    data = {"file": arguments.file, "exported": len(entries)}
    return Answer(data, [f"{_number(len(entries))} written to {arguments.file}"])


def _import(arguments: argparse.Namespace) -> Answer:
    store, kinds, contents = _store(), _kinds(arguments), file.read(arguments.file)
    rejected = list(contents.rejected)
    measured = [entry for entry in contents.entries if entry.kind in kinds and entry.kind != "jit"]
    kernels = [entry for entry in contents.entries if entry.kind in kinds and entry.kind == "jit"]
    unsafe = f"is machine code that others may change: {contents.unsafe}" if contents.unsafe else ""
    accepted = 0
    for entries, refusal, combine in (
        (measured, "", merge),
        (kernels, unsafe, lambda old, new: old),
    ):
        reason = refusal or ("" if store.keep(entries, combine) else "could not be written")
        rejected += [(entry.subject, reason) for entry in entries if reason]
        accepted += 0 if reason else len(entries)
    data = {"file": arguments.file, "accepted": accepted, "rejected": _named(rejected)}
    lines = [f"{_number(accepted)} accepted, {len(rejected)} rejected"]
    lines += [f"{name}: {reason}" for name, reason in rejected]
    return Answer(data, lines, int(bool(rejected) and not accepted))


def _clear(arguments: argparse.Namespace) -> Answer:
    store, kinds = _store(), _kinds(arguments)
    removed = {kind: len(store.entries(kind)) for kind in kinds}
    store.clear(*kinds)
    rows = [(kind, f"{_number(count)} removed") for kind, count in removed.items()]
    return Answer({"folder": str(store.root), "removed": removed}, align_columns(rows))


def _store() -> Store:
    folder = settings.cache_folder()
    if folder is None:
        raise CacheError("no home folder was found for the caches; set MINIGRAPH_CACHE_DIR")
    return Store(folder)


def _kinds(arguments: argparse.Namespace) -> Sequence[str]:
    return [arguments.kind] if arguments.kind else KINDS


def _named(rejected: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"entry": name, "reason": reason} for name, reason in rejected]


def _size(entry: Entry) -> int:
    return len(entry.body) + len(entry.blob)


# ---------------------------------------------------------------- text


def _number(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


def _words(values: dict[str, Any], between: str = " ") -> str:
    return ", ".join(f"{k}{between}{v}" for k, v in values.items() if v is not None)


def _printable(text: str) -> str:
    """Return a text without control characters: names of entries may come from any file."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
