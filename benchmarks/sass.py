"""Machine code of a CUDA kernel: what it takes, and how many instructions its loops issue.

Registers, stack and shared memory stand in the cubin, an ELF file; the instructions (SASS) come
from `nvdisasm`, which the wheel nvidia-cuda-nvdisasm brings.  Neither needs a GPU.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

PACKAGE = "nvidia-cuda-nvdisasm"
REGISTERS, FRAME = 0x2F, 0x11  # EIATTR_REGCOUNT and EIATTR_FRAME_SIZE in .nv.info
VALUE = 4  # EIFMT_SVAL, the only format whose attribute has a size

INSTRUCTION = re.compile(r"/\*([0-9a-f]+)\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z]\S*)(.*?);")
LABEL = re.compile(r"^(\.L_x_\d+):")
KERNEL = re.compile(r"^\.text\.(\w+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


@dataclass(frozen=True)
class Loop:
    """A loop, as it runs where all of its elements are there.

    instructions  of one iteration, each inner loop counted once
    bytes         of global memory that those without a predicate move
    """

    instructions: int
    bytes: int


@dataclass(frozen=True)
class MachineCode:
    """A kernel, compiled.

    registers     of a thread
    stack         bytes of a thread's stack, which lie in memory
    shared        bytes of shared memory of a block
    spills        instructions that load from the stack or store to it
    instructions  all of them; 0 if they are not known
    loops         those that move global memory, in order
    """

    registers: int
    stack: int
    shared: int
    spills: int
    instructions: int
    loops: tuple[Loop, ...]


def nvdisasm() -> str | None:
    """Return the disassembler: that of the wheel, else that on the path; None if there is none."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return shutil.which("nvdisasm")
    found = [str(f.locate()) for f in files if f.name == "nvdisasm"]
    return found[0] if found else shutil.which("nvdisasm")


def machine_code(cubin: bytes, disassembler: str | None) -> dict[str, MachineCode]:
    """Return the kernels of a cubin by name; without a disassembler they have no instructions."""
    listings: dict[str, list[Instruction]] = {}
    if disassembler:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(cubin)
            command = [disassembler, "-c", file.name]
            said = subprocess.run(command, capture_output=True, text=True, check=True)
        listings = parse(said.stdout)
    sections = _Sections(cubin)
    return {name: sections.kernel(name, listings.get(name, ())) for name in sections.kernels}


# ---------------------------------------------------------------- resources


class _Sections:
    """What stands in the sections of a cubin."""

    def __init__(self, cubin: bytes) -> None:
        self.cubin = cubin
        at, size, count, names = *struct.unpack_from("<Q", cubin, 40), *self._table()
        rows = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + i * size) for i in range(count)]
        text = rows[names]
        self.sections = {self._string(text[4] + row[0]): row for row in rows}
        symbols, strings = self.sections[".symtab"], self.sections[".strtab"]
        self.symbols = [
            self._string(strings[4] + struct.unpack_from("<I", cubin, symbols[4] + 24 * i)[0])
            for i in range(symbols[5] // 24)
        ]
        self.info = dict(self._attributes())

    def _table(self) -> tuple[int, ...]:
        return struct.unpack_from("<HHH", self.cubin, 58)

    def _string(self, at: int) -> str:
        return self.cubin[at : self.cubin.index(b"\0", at)].decode()

    def _attributes(self) -> Iterator[tuple[tuple[int, str], int]]:
        """Yield the numbers that .nv.info has of kernels, by attribute and name."""
        _, _, _, _, at, size, *_ = self.sections[".nv.info"]
        end = at + size
        while at < end:
            form, attribute, length = struct.unpack_from("<BBH", self.cubin, at)
            at += 4
            if form == VALUE:
                if length == 8:
                    symbol, value = struct.unpack_from("<II", self.cubin, at)
                    yield (attribute, self.symbols[symbol]), value
                at += length

    @property
    def kernels(self) -> list[str]:
        return [name for attribute, name in self.info if attribute == REGISTERS]

    def kernel(self, name: str, code: Sequence[Instruction]) -> MachineCode:
        shared = self.sections.get(f".nv.shared.{name}")
        return MachineCode(
            self.info[REGISTERS, name],
            self.info.get((FRAME, name), 0),
            shared[5] if shared else 0,
            sum(line.name.startswith(("LDL", "STL")) for line in code),
            len(code),
            tuple(loops(code)),
        )


# ---------------------------------------------------------------- instructions


@dataclass
class Instruction:
    """One instruction.

    name       with its suffixes, such as LDG.E.128
    predicate  under which alone it takes effect; empty if it always does
    target     of a branch, as the number of an instruction; -1 if it is none
    """

    name: str
    predicate: str
    operands: str
    target: int = -1

    @property
    def bytes(self) -> int:
        """The bytes of global memory that it moves in any case."""
        kind, *suffixes = self.name.split(".")
        if kind not in ("LDG", "STG") or self.predicate:
            return 0
        return next((WIDTHS[s] for s in suffixes if s in WIDTHS), 4)


@dataclass
class _Listing:
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def parse(text: str) -> dict[str, list[Instruction]]:
    """Return the instructions of each kernel in what `nvdisasm -c` prints."""
    listings: dict[str, _Listing] = {}
    listing = _Listing()
    for line in text.splitlines():
        if found := KERNEL.match(line):
            listing = listings.setdefault(found[1], _Listing())
        elif found := LABEL.match(line):
            listing.labels[found[1]] = len(listing.code)
        elif found := INSTRUCTION.search(line):
            listing.code.append(Instruction(found[3], found[2] or "", found[4]))
    for listing in listings.values():
        for line in listing.code:
            if line.name == "BRA" and (found := TARGET.search(line.operands)):
                line.target = listing.labels[found[1]]
        _trim(listing.code)
    return {name: listing.code for name, listing in listings.items()}


def _trim(code: list[Instruction]) -> None:
    """Remove what pads the end: no-ops, and a branch to itself."""
    while code and (code[-1].name == "NOP" or code[-1].target == len(code) - 1):
        code.pop()


def loops(code: Sequence[Instruction]) -> Iterator[Loop]:
    """Yield the loops that move global memory, and hold no other that does.

    Of the paths through a loop the one counts that moves the most bytes in instructions without a
    predicate, and of these the shortest: the one for a whole group of elements.
    """
    follow = {i: [*_following(code, i)] for i in range(len(code))}
    back = _back_edges(follow)
    bodies: dict[int, set[int]] = {}
    for latch, head in back:
        bodies.setdefault(head, set()).update(_body(follow, head, latch))
    found: dict[int, Loop] = {}
    for head, body in bodies.items():
        latches = {latch for latch, top in back if top == head}
        length, moved = _best_path(code, follow, back, head, body, latches)
        if moved:
            found[head] = Loop(length, moved)
    for head in sorted(found):
        if not any(other in bodies[head] for other in found if other != head):
            yield found[head]


def _following(code: Sequence[Instruction], i: int) -> Iterator[int]:
    """Yield the instructions that may run after instruction `i`."""
    line = code[i]
    # A uniform or second predicate stands among the operands: "BRA P1, `(.L_x_1)".
    sure = not line.predicate and not re.match(r"\s*!?U?P\d", line.operands)
    if 0 <= line.target < len(code):
        yield line.target
    ends = line.name in ("EXIT", "RET", "BRA") or line.name.startswith("RET.")
    if not (ends and sure) and i + 1 < len(code):
        yield i + 1


def _back_edges(follow: Mapping[int, Sequence[int]]) -> set[tuple[int, int]]:
    """Return the edges that close a loop, found depth first."""
    found: set[tuple[int, int]] = set()
    state: dict[int, int] = {}  # 1 on the stack, 2 done
    stack = [(0, iter(follow.get(0, ())))]
    state[0] = 1
    while stack:
        node, others = stack[-1]
        for other in others:
            if state.get(other) == 1:
                found.add((node, other))
            elif other not in state:
                state[other] = 1
                stack.append((other, iter(follow[other])))
                break
        else:
            state[node] = 2
            stack.pop()
    return found


def _body(follow: Mapping[int, Sequence[int]], head: int, latch: int) -> set[int]:
    """Return the instructions from which the latch is reached without passing the head."""
    before: dict[int, list[int]] = {}
    for i, others in follow.items():
        for j in others:
            before.setdefault(j, []).append(i)
    body, stack = {head, latch}, [latch]
    while stack:
        node = stack.pop()
        if node == head:
            continue
        for other in before.get(node, ()):
            if other not in body:
                body.add(other)
                stack.append(other)
    return body


def _best_path(
    code: Sequence[Instruction],
    follow: Mapping[int, Sequence[int]],
    back: set[tuple[int, int]],
    head: int,
    body: set[int],
    latches: set[int],
) -> tuple[int, int]:
    """Return the length of the path which counts, and the bytes that it moves."""
    order: list[int] = []  # children before parents
    seen: set[int] = set()
    stack = [(head, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(j, False) for j in follow[node] if j in body and (node, j) not in back]
    best: dict[int, tuple[int, int]] = {}  # bytes, and the length below zero: the largest counts
    for node in order:
        ways = [best[j] for j in follow[node] if j in best and (node, j) not in back]
        if node in latches:
            ways.append((0, 0))
        if ways:
            moved, length = max(ways)
            best[node] = moved + code[node].bytes, length - 1
    moved, length = best.get(head, (0, 0))
    return -length, moved
