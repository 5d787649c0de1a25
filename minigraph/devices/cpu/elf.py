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
from typing import NamedTuple

ALLOCATED, EMPTY, SYMBOLS, RELOCATIONS = 2, 8, 2, 4  # a flag of sections, and kinds
# Kinds of relocation: an address; a distance; the distance of an address.
ADDRESS, DISTANCE, INDIRECT = (1,), (2, 4), (9, 41, 42)
HEADER, SECTION, SYMBOL, RELOCATION = "<40xQ12xH", "<4xIQ8xQQIIQ8x", "<IxxHQ8x", "<QIIq"
JUMP = b"\xff\x25\x00\x00\x00\x00"  # to the address that follows, as only that is within reach
STUB = 16  # bytes of a jump
_loaded: list[mmap.mmap] = []  # never unloaded: kernels point into it


class _Section(NamedTuple):
    """A section: its kind and flags, where the file has it, and what belongs to it."""

    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int

    def content(self, code: bytes) -> bytes:
        return code[self.offset : self.offset + self.size]


def load(code: bytes) -> dict[str, int]:
    """Return the addresses of what an object file defines; OSError if it cannot be loaded."""
    try:
        return _load(code)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise OSError(f"it is no object file that can be loaded ({error})") from None


def _load(code: bytes) -> dict[str, int]:
    if code[:5] != b"\x7fELF\x02":
        raise ValueError("it begins otherwise")
    begin, count = struct.unpack_from(HEADER, code)
    headers = code[begin:][: count * struct.calcsize(SECTION)]
    sections = [_Section(*header) for header in struct.iter_unpack(SECTION, headers)]
    image = bytearray()
    places: dict[int, int] = {}  # of sections, in the image
    for i, section in enumerate(sections):
        if section.flags & ALLOCATED:
            image += bytes(-len(image) % max(section.alignment, 1))
            places[i] = len(image)
            image += bytes(section.size) if section.kind == EMPTY else section.content(code)
    (table,) = (section for section in sections if section.kind == SYMBOLS)
    names = sections[table.link].content(code)
    symbols = [  # each a name for a place in a section; section 0 is the C library
        (names[name : names.index(b"\0", name)].decode(), section, value)
        for name, section, value in struct.iter_unpack(SYMBOL, table.content(code))
    ]
    image += bytes(-len(image) % STUB)
    stubs: dict[str, int] = {}
    for name, at, _ in symbols:
        if name and at == 0 and name not in stubs:
            stubs[name] = len(image)
            image += (JUMP + _library_function(name).to_bytes(8, "little")).ljust(STUB, b"\0")
    memory = mmap.mmap(-1, len(image))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for section in sections:
        if section.kind != RELOCATIONS or section.info not in places:
            continue
        for offset, kind, i, addend in struct.iter_unpack(RELOCATION, section.content(code)):
            (name, at, value), place = symbols[i], places[section.info] + offset
            target = (places[at] if at else stubs[name]) + value + addend
            if kind in ADDRESS:
                struct.pack_into("<Q", image, place, address + target)
            elif kind in DISTANCE:
                struct.pack_into("<i", image, place, target - place)
            elif kind in INDIRECT:  # the address of a function of the library stands in its jump
                struct.pack_into("<i", image, place, target + len(JUMP) - place)
            else:
                raise ValueError(f"its relocations are of kind {kind}")
    memory[:] = bytes(image)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    rights = mmap.PROT_READ | mmap.PROT_EXEC
    if protect(ctypes.c_void_p(address), ctypes.c_size_t(len(image)), rights):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _loaded.append(memory)
    return {name: address + places[at] + value for name, at, value in symbols if at in places}


def _library_function(name: str) -> int:
    """The address of a function of the C library; AttributeError if it has none of the name."""
    function = getattr(_libm() if hasattr(_libm(), name) else ctypes.CDLL(None), name)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6")
