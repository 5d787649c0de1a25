"""Object files of the x86-64, loaded into memory without a linker.

What Halide writes is small: a few sections, and a few kinds of relocation.  The functions that it
calls are those of the C library.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

ALLOCATED, EMPTY, SYMBOLS, RELOCATIONS = 2, 8, 2, 4  # a flag of sections, and kinds
# Kinds of relocation: an address; a distance; the distance of an address.
ADDRESS, DISTANCE, INDIRECT = (1,), (2, 4), (9, 41, 42)
HEADER, SECTION, SYMBOL, RELOCATION = "<40xQ10xHH", "<8xQ8xQQIIQQ", "<IxxHQ8x", "<QQq"
JUMP = b"\xff\x25\x00\x00\x00\x00"  # to the address that follows, as only that is within reach
STUB = 16  # bytes of a jump


class _Section(NamedTuple):
    """A section: its kind and flags, where the file has it, and what belongs to it."""

    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class _Symbol(NamedTuple):
    """A name for a place in a section; section 0 is the C library."""

    name: str
    section: int
    value: int


def load(code: bytes) -> dict[str, int]:
    """Return the addresses of what an object file defines; OSError if it cannot be loaded.

    It is never unloaded: kernels point into it.
    """
    try:
        return _load(code)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise OSError(f"it is no object file that can be loaded ({error})") from None


def _load(code: bytes) -> dict[str, int]:
    if code[:5] != b"\x7fELF\x02":
        raise ValueError("it begins otherwise")
    begin, size, count = struct.unpack_from(HEADER, code)
    sections = [_section(code, begin + i * size) for i in range(count)]
    symbols = [
        symbol for s in sections if s.kind == SYMBOLS for symbol in _symbols(code, s, sections)
    ]
    places, end = {}, 0  # of sections, in what is loaded
    for i, section in enumerate(sections):
        if section.flags & ALLOCATED:
            places[i] = _aligned(end, section.alignment)
            end = places[i] + section.size
    called = dict.fromkeys(s.name for s in symbols if s.section == 0 and s.name)
    stubs = {name: _aligned(end, STUB) + i * STUB for i, name in enumerate(called)}
    image = bytearray(_aligned(end, STUB) + len(stubs) * STUB)
    for i, place in places.items():
        if sections[i].kind != EMPTY:
            part = code[sections[i].offset :][: sections[i].size]
            image[place : place + sections[i].size] = part
    for name, place in stubs.items():
        function = _library_function(name)
        image[place : place + STUB - 2] = JUMP + function.to_bytes(8, "little")
    address = _reserve(len(image))
    for section in sections:
        if section.kind != RELOCATIONS or section.info not in places:
            continue
        for at in range(section.offset, section.offset + section.size, section.entry):
            offset, kind, addend = struct.unpack_from(RELOCATION, code, at)
            symbol, place = symbols[kind >> 32], places[section.info] + offset
            target = stubs[symbol.name] if symbol.section == 0 else places[symbol.section]
            target += symbol.value
            _relocate(image, kind & 0xFFFFFFFF, place, target, addend, address)
    ctypes.memmove(address, bytes(image), len(image))
    _system("mprotect", address, len(image), mmap.PROT_READ | mmap.PROT_EXEC)
    return {s.name: address + places[s.section] + s.value for s in symbols if s.section in places}


def _relocate(
    image: bytearray, kind: int, place: int, target: int, addend: int, address: int
) -> None:
    """Fill in what depends on where things are; all places are counted from `address`."""
    if kind in ADDRESS:
        struct.pack_into("<Q", image, place, address + target + addend)
    elif kind in DISTANCE:
        struct.pack_into("<i", image, place, target + addend - place)
    elif kind in INDIRECT:  # the address of a function of the library stands in its jump
        struct.pack_into("<i", image, place, target + len(JUMP) + addend - place)
    else:
        raise ValueError(f"its relocations are of kind {kind}")


def _section(code: bytes, at: int) -> _Section:
    kind = int.from_bytes(code[at + 4 : at + 8], "little")
    return _Section(kind, *struct.unpack_from(SECTION, code, at))


def _symbols(code: bytes, table: _Section, sections: list[_Section]) -> Iterator[_Symbol]:
    names = code[sections[table.link].offset :][: sections[table.link].size]
    for at in range(table.offset, table.offset + table.size, table.entry):
        name, section, value = struct.unpack_from(SYMBOL, code, at)
        yield _Symbol(names[name : names.index(b"\0", name)].decode(), section, value)


def _aligned(place: int, alignment: int) -> int:
    return -(-place // max(alignment, 1)) * max(alignment, 1)


def _library_function(name: str) -> int:
    """The address of a function of the C library; AttributeError if it has none of the name."""
    function = getattr(_libm() if hasattr(_libm(), name) else ctypes.CDLL(None), name)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6")


def _reserve(size: int) -> int:
    """Return memory that can be written until it is protected."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return _system("mmap", None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)


def _system(name: str, address: int | None, *args: int) -> int:
    """Call a function of the system that returns an address, or 0; OSError where it fails."""
    function = ctypes.CDLL(None, use_errno=True)[name]
    function.restype = ctypes.c_ssize_t
    result = int(function(ctypes.c_void_p(address), *map(ctypes.c_ssize_t, args)))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
