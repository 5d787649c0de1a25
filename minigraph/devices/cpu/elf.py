"""Loading x86-64 object files into memory without a linker.

Halide's object files have few sections and few kinds of relocation, and call only functions of the
C library.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import sys

IS_SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"
ALLOCATED, ZEROED, SYMBOLS, RELOCATIONS = 2, 8, 2, 4  # a flag of sections, and kinds
# Kinds of relocation: an address; a distance; the distance of an address.
ABSOLUTE_KINDS, RELATIVE_KINDS, GOT_KINDS = (1,), (2, 4), (9, 41, 42)
HEADER, SECTION, SYMBOL, RELOCATION = "<40xQ12xH", "<4xIQ8xQQIIQ8x", "<IxxHQ8x", "<QIIq"
JUMP = b"\xff\x25\x00\x00\x00\x00"  # to the 64-bit address that follows the instruction
STUB_BYTES = 32  # bytes of a jump with the instructions before it
# For Halide's functions: code that drops the first argument, a context, and the C function.
ALLOCATION_STUBS = {
    "halide_malloc": (b"\xbf\x40\x00\x00\x00", "aligned_alloc"),  # mov edi, 64
    "halide_free": (b"\x48\x89\xf7", "free"),  # mov rdi, rsi
}
_loaded: list[mmap.mmap] = []  # never unloaded, because kernels point into the memory


def load(code: bytes) -> dict[str, int]:
    """Return the addresses of an object file's symbols; raise OSError if it cannot be loaded."""
    try:
        return _load(code)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise OSError(f"the object file cannot be loaded ({error})") from None


def _load(code: bytes) -> dict[str, int]:
    if code[:5] != b"\x7fELF\x02":
        raise ValueError("it is not a 64-bit ELF file")
    begin, count = struct.unpack_from(HEADER, code)
    headers = code[begin:][: count * struct.calcsize(SECTION)]
    sections = [*struct.iter_unpack(SECTION, headers)]
    contents = [code[offset : offset + size] for _, _, offset, size, *_ in sections]
    image, offsets = bytearray(), dict[int, int]()  # offsets of sections in the image
    for i, (kind, flags, _, size, _, _, alignment) in enumerate(sections):
        if flags & ALLOCATED:
            image += bytes(-len(image) % max(alignment, 1))
            offsets[i] = len(image)
            image += bytes(size) if kind == ZEROED else contents[i]
    (table,) = (i for i, section in enumerate(sections) if section[0] == SYMBOLS)
    names = contents[sections[table][4]]
    symbols = [  # names, sections and offsets; section 0 is the C library
        (names[name : names.index(b"\0", name)].decode(), section, value)
        for name, section, value in struct.iter_unpack(SYMBOL, contents[table])
    ]
    image += bytes(-len(image) % STUB_BYTES)
    stubs: dict[str, int] = {}
    for name in sorted({name for name, at, _ in symbols if name and at == 0}):
        stubs[name] = len(image)
        prefix, callee = ALLOCATION_STUBS.get(name, (b"", name))
        image += prefix + JUMP + _library_function(callee).to_bytes(8, "little")
        image += bytes(-len(image) % STUB_BYTES)
    memory = mmap.mmap(-1, len(image))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for (kind, *_, section, _), content in zip(sections, contents, strict=True):
        if kind != RELOCATIONS or section not in offsets:
            continue
        for offset, relocation, i, addend in struct.iter_unpack(RELOCATION, content):
            (name, at, value), position = symbols[i], offsets[section] + offset
            target = (offsets[at] if at else stubs[name]) + value + addend
            if relocation in ABSOLUTE_KINDS:
                struct.pack_into("<Q", image, position, address + target)
            elif relocation in RELATIVE_KINDS:
                struct.pack_into("<i", image, position, target - position)
            elif relocation in GOT_KINDS:  # the jump of a library function has its address
                slot = target + len(ALLOCATION_STUBS.get(name, (b"",))[0]) + len(JUMP)
                struct.pack_into("<i", image, position, slot - position)
            else:
                raise ValueError(f"relocations of kind {relocation} are not supported")
    memory[:] = bytes(image)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    rights = mmap.PROT_READ | mmap.PROT_EXEC
    if protect(ctypes.c_void_p(address), ctypes.c_size_t(len(image)), rights):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _loaded.append(memory)
    return {name: address + offsets[at] + value for name, at, value in symbols if at in offsets}


def _library_function(name: str) -> int:
    """Return the address of a function of the C library; raise AttributeError without one."""
    library = ctypes.CDLL("libm.so.6")
    function = getattr(library if hasattr(library, name) else ctypes.CDLL(None), name)
    return ctypes.cast(function, ctypes.c_void_p).value or 0
