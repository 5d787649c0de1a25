"""A limit on the processor's instructions, and how each library is told of it.

ONEDNN_MAX_CPU_ISA=AVX2 limits minigraph.  The other sides have variables of their own for that;
they get them, so that all sides of a run have the same instructions.
"""

from __future__ import annotations

import os

from minigraph.cache.machine import features
from minigraph.devices.cpu import onednn
from minigraph.errors import OptionError

AVX2 = "AVX2"
VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch; its oneDNN reads ONEDNN_MAX_CPU_ISA
    "MKL_ENABLE_INSTRUCTIONS": AVX2,  # PyTorch's matrix products
    "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",  # torch.compile's C++: AVX2 and FMA
}
XLA = f"--xla_cpu_max_isa={AVX2}"  # JAX


def limit() -> str:
    """Return "AVX2" where ONEDNN_MAX_CPU_ISA takes AVX-512 away, else "".

    OptionError if it takes AVX2 away too: not every library can do without.
    """
    library = onednn.library()
    missing = ~library.instructions if library else 0
    if "avx2" in features() and missing & onednn.AVX2:
        raise OptionError("ONEDNN_MAX_CPU_ISA has to be AVX2 or more: not every peer can do less")
    return AVX2 if "avx512f" in features() and missing & onednn.AVX512 else ""


def variables() -> dict[str, str]:
    """Return the environment variables that limit all libraries as minigraph is limited."""
    if not limit():
        return {}
    return {**VARIABLES, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {XLA}".strip()}
