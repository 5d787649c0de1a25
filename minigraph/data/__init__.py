"""Data sets, and the loader that makes batches of them: NumPy arrays in and out, no graph.

scikit-learn (`Digits`) and Pillow (`ImageFolder`) are optional: the extra `data`.
"""

from minigraph import errors
from minigraph.data.collation import default_collate
from minigraph.data.dataset import Dataset
from minigraph.data.folder import ImageFolder, read_image
from minigraph.data.loader import DataLoader
from minigraph.data.sets import CIFAR10, Digits, Synthetic

__all__ = [
    "CIFAR10",
    "DataLoader",
    "Dataset",
    "Digits",
    "ImageFolder",
    "Synthetic",
    "default_collate",
    "read_image",
]
errors.install_hints(__name__, "data")
