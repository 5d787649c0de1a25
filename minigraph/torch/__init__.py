"""Models of PyTorch, trained and run by minigraph on PyTorch's own memory."""

from minigraph.torch.threads import torch

OLDEST = (2, 6)  # that has torch.export's `default_decompositions` and `Dim.DYNAMIC`

if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
    raise ImportError(
        f"minigraph.torch needs PyTorch {'.'.join(map(str, OLDEST))} or newer, "
        f"and {torch.__version__} is installed"
    )

from minigraph.torch.conversion import ConvertedModule, convert  # noqa: E402
from minigraph.torch.training import TrainingStep, training_step  # noqa: E402

__all__ = ["ConvertedModule", "TrainingStep", "convert", "training_step"]
