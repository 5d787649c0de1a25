"""The C text that precedes all kernels of a translation unit."""

from __future__ import annotations

from pathlib import Path

from minigraph.jit.kernel import MAX_RANK

PRELUDE = f"#define MG_MAX_RANK {MAX_RANK}\n" + Path(__file__).with_name("prelude.c").read_text()
