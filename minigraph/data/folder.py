"""Photographs on disk, one folder for each class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from minigraph.arguments import Count, FilePath, checked, few
from minigraph.data.dataset import Dataset, Example
from minigraph.data.image import MEAN, STD, Channels, ImageReader
from minigraph.errors import GraphError, reason

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
# Folders that systems make beside those of users, besides all whose names begin with a dot.
SYSTEM = frozenset(
    ("__MACOSX", "__pycache__", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
)


class ImageFolder(Dataset):
    """The pictures in `directory`'s folders; a folder's name is its class.

    Pictures are JPEG, PNG, WebP, BMP and TIFF files (.jpg, .jpeg, .png, .webp, .bmp, .tif, .tiff).
    Hidden files and folders, and those of systems such as `__MACOSX`, are not part of the set.

    Plain, an image's short side becomes size * 8/7 and the centre is kept.  With `augment` it is
    a random part (8 to 100 % of the area, sides as 3:4 to 4:3), flipped one time in two, as in
    C. Szegedy et al. (2015), Going Deeper with Convolutions.  Cropping and scaling are one
    bilinear step.  Colours are RGB whatever the file has, upright as its EXIF data say, scaled by
    `mean` and `std`.  Classes and files are sorted by name; folders inside a class folder and
    files of other kinds are not part of the set.  An image of more than
    `PIL.Image.MAX_IMAGE_PIXELS` pixels is an error.
    """

    @checked
    def __init__(
        self,
        directory: FilePath,
        size: Count = 224,
        augment: bool = False,
        mean: Channels = MEAN,
        std: Channels = STD,
    ) -> None:
        self._reader = ImageReader("ImageFolder", size, mean, std)
        self.size, self.mean, self.std = size, mean, std
        self.augment = augment
        self.shape = (3, self.size, self.size)

        root = Path(directory)
        try:
            self.classes = _folders(root)
            self._files = [
                (root / name / file, label)
                for label, name in enumerate(self.classes)
                for file in _images(root / name)
            ]
        except (OSError, ValueError) as error:
            if isinstance(error, GraphError):
                raise
            where = getattr(error, "filename", root)
            raise GraphError(
                f"ImageFolder cannot read {where} ({reason(error)}); "
                "it takes a directory with a folder of images for each class"
            ) from error
        if not self.classes:
            raise GraphError(f"ImageFolder found no folder in {root}; it takes one for each class")

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        return self._load(self.position(index), None)

    def example(self, index: int, rng: np.random.Generator) -> Example:
        return self._load(self.position(index), rng if self.augment else None)

    def _load(self, position: int, rng: np.random.Generator | None) -> Example:
        path, label = self._files[position]
        return self._reader.read(path, rng), label


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in SYSTEM


def _folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not _hidden(p.name)))


def _named_as_images(folder: Path) -> list[str]:
    files = (name for name in os.listdir(folder) if not _hidden(name))
    return sorted(name for name in files if name.lower().endswith(SUFFIXES))


def _images(folder: Path) -> list[str]:
    """Return the names of the images in a class's folder, of which there must be some."""
    names = _named_as_images(folder)
    if names:
        return names
    if any(_named_as_images(folder / name) for name in _folders(folder)):
        root = folder.parent
        parts = few([f"ImageFolder({str(root / name)!r})" for name in _folders(root)])
        raise GraphError(
            f"ImageFolder({str(root)!r}): {folder} has folders of images, not images; if "
            f"{root} holds data sets, such as train and test, read each: {parts}"
        )
    raise GraphError(
        f"ImageFolder found no image in {folder}; it takes {', '.join(SUFFIXES)} files"
    )
