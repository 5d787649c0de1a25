"""Models of PyTorch, trained and run by minigraph on PyTorch's own memory."""

from minigraph.devices.cpu import openmp
from minigraph.errors import warn_once

# PyTorch's wheels load GNU's OpenMP library, whose threads run the kernels of both.  With this
# setting idle threads soon sleep.  If PyTorch is imported before minigraph they spin, which
# slows a step several times on a shared processor; OMP_WAIT_POLICY=passive prevents that.
with openmp.short_spins():
    import torch

MIN_TORCH = (2, 6)  # the first with torch.export's `default_decompositions` and `Dim.DYNAMIC`
MAX_TESTED_TORCH = (2, 13)  # the newest

_installed = tuple(map(int, torch.__version__.split(".")[:2]))
_oldest, _tested = (".".join(map(str, version)) for version in (MIN_TORCH, MAX_TESTED_TORCH))
if _installed < MIN_TORCH:
    raise ImportError(
        f"minigraph.torch needs PyTorch {_oldest} or newer, and {torch.__version__} is installed"
    )
try:
    from minigraph.torch.conversion import ConvertedModule, convert
    from minigraph.torch.training import TrainingStep, training_step
except (ImportError, AttributeError) as error:
    if _installed <= MAX_TESTED_TORCH:
        raise
    raise ImportError(
        f"minigraph.torch does not work with PyTorch {torch.__version__} ({error}); {_tested} is "
        "the newest that it was tested with"
    ) from error
if _installed > MAX_TESTED_TORCH:
    warn_once(
        f"PyTorch {torch.__version__} is newer than {_tested}, the newest that minigraph.torch was "
        "tested with"
    )

__all__ = ["ConvertedModule", "TrainingStep", "convert", "training_step"]
