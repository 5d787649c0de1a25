"""Data sets and the loader that makes batches of them: NumPy in, NumPy out, no graph.

scikit-learn (`Digits`) and Pillow (`ImageFolder`) are optional: the extra `data`.
"""

from minigraph import torch_hints
from minigraph.data.cifar import CIFAR10
from minigraph.data.collation import default_collate
from minigraph.data.dataset import Dataset
from minigraph.data.digits import Digits
from minigraph.data.folder import ImageFolder
from minigraph.data.image import read_image
from minigraph.data.loader import DataLoader
from minigraph.data.synthetic import Synthetic

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
torch_hints.install(__name__, "data")
