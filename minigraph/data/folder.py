"""Photographs on disk, one folder for each class, prepared as is usual for ImageNet."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from minigraph import regular_file
from minigraph.arguments import NUMBER, Count, FilePath, Kind, checked
from minigraph.data.dataset import Dataset, Example, library, normalise
from minigraph.errors import GraphError, reason

SUFFIXES = (".jpg", ".jpeg", ".png")
# Pillow knows a file by its contents, whatever its name: for PostScript it would run Ghostscript.
FORMATS = ("JPEG", "PNG")
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

# The part of the short side that is kept: 224 of 256.
KEPT = 7 / 8
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)

Box = tuple[float, float, float, float]


def _channels(value: Any) -> tuple[float, float, float]:
    red, green, blue = map(NUMBER.parse, value)
    return red, green, blue


Channels = Annotated[Sequence[float], Kind("a number for each of 3 channels", _channels)]


class ImageFolder(Dataset):
    """The JPEG and PNG files in `directory`'s folders; a folder's name is its class.

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
        if min(std) <= 0:
            raise GraphError(f"ImageFolder: std is {std}; it takes positive numbers")
        self.size, self.mean, self.std = size, mean, std
        self.augment = augment
        self.shape = (3, self.size, self.size)
        self._pillow = library("PIL.Image", "ImageFolder")
        self._upright = library("PIL.ImageOps", "ImageFolder").exif_transpose

        root = Path(directory)
        try:
            self.classes = tuple(sorted(path.name for path in root.iterdir() if path.is_dir()))
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
        try:
            image = self._rgb(path)
        # Pillow's decoders raise what they meet, from SyntaxError to struct.error.
        except Exception as error:
            raise GraphError(
                f"ImageFolder cannot decode {path} ({type(error).__name__}: {error}); "
                "replace the file or remove it"
            ) from error
        width, height = image.size
        box = _random(width, height, rng) if rng else _centre(width, height)
        resized = image.resize((self.size, self.size), self._pillow.Resampling.BILINEAR, box)
        pixels = np.asarray(resized).transpose(2, 0, 1)
        if rng and rng.random() < 0.5:
            pixels = pixels[:, :, ::-1]
        return normalise(pixels, self.mean, self.std), label

    def _rgb(self, path: Path) -> Any:
        """Return the file's image, upright, in RGB."""
        opened, _ = regular_file.open_to_read(path)
        with opened, self._pillow.open(opened, formats=FORMATS) as file:
            self._check_size(*file.size)
            image = self._upright(file)
            if image.mode.startswith("I;16"):
                # Pillow would clip 16 bits to 8 instead of scaling them.
                image = self._pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            elif "transparency" in image.info:
                # From a palette with transparent entries straight to RGB, Pillow warns.
                image = image.convert("RGBA")
            return image.convert("RGB")

    def _check_size(self, width: int, height: int) -> None:
        """Raise an error for more pixels than Pillow warns of, before they are decoded."""
        limit = self._pillow.MAX_IMAGE_PIXELS
        if limit is not None and width * height > limit:
            raise ValueError(
                f"{width} x {height} pixels are more than PIL.Image.MAX_IMAGE_PIXELS, {limit}"
            )


def _images(folder: Path) -> list[str]:
    """Return the names of the images in a class's folder, of which there must be some."""
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES))
    if not names:
        raise GraphError(
            f"ImageFolder found no image in {folder}; it takes {', '.join(SUFFIXES)} files"
        )
    return names


def _centre(width: int, height: int) -> Box:
    """Return the square in the middle that a resize to size * 8/7 and a crop would leave."""
    side = KEPT * min(width, height)
    return _middle(width, height, side, side)


def _middle(width: int, height: int, w: float, h: float) -> Box:
    """Return the box of w x h in the middle of an image."""
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def _random(width: int, height: int, rng: np.random.Generator) -> Box:
    """Return a part of random area and ratio; after ten that do not fit, the largest central."""
    for _ in range(10):
        area = width * height * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    return _middle(width, height, min(width, height * RATIO[1]), min(height, width / RATIO[0]))
