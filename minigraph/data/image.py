"""Photographs, prepared as is usual for ImageNet."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import NUMBER, Count, FilePath, Kind, checked
from minigraph.data.dataset import Images, library, normalise
from minigraph.errors import GraphError
from minigraph.platform import regular_file

# Pillow knows a file by its contents, whatever its name: for PostScript it would run Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

CENTRE = 7 / 8  # the part of the short side that a central crop leaves: 224 of 256
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)

Box = tuple[float, float, float, float]


def _channels(value: Any) -> tuple[float, float, float]:
    red, green, blue = map(NUMBER.parse, value)
    return red, green, blue


Channels = Annotated[Sequence[float], Kind("a number for each of 3 channels", _channels)]


@checked
def read_image(
    path: FilePath, size: Count = 224, mean: Channels = MEAN, std: Channels = STD
) -> Images:
    """Return the picture in a file, prepared as `ImageFolder` does without `augment`.

    It is float32 (3, size, size).  GraphError for a file that cannot be read.
    """
    return ImageReader("read_image", size, mean, std).read(Path(path), None)


class ImageReader:
    """Reads pictures of one size for `user`, which errors name; `ImageFolder` says how."""

    def __init__(self, user: str, size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        if min(std) <= 0:
            raise GraphError(f"{user}: std is {std}; it takes positive numbers")
        self._user, self._size, self._mean, self._std = user, size, mean, std
        self._pillow, self._turns = library("PIL.Image", user), library("PIL.ImageOps", user)

    def read(self, path: Path, rng: np.random.Generator | None) -> Images:
        """Return a picture [3, size, size]: its centre, or with `rng` a random part."""
        try:
            image = self._rgb(path)
        # Pillow's decoders raise what they meet, from SyntaxError to struct.error.
        except Exception as error:
            if why := getattr(error, "strerror", None):  # an error of the system, not of a decoder
                raise GraphError(f"{self._user} cannot read {path} ({why})") from error
            raise GraphError(
                f"{self._user} cannot decode {path} ({type(error).__name__}: {error}); "
                "replace the file or remove it"
            ) from error
        width, height = image.size
        box = _random(width, height, rng) if rng else _centre(width, height)
        resized = image.resize((self._size, self._size), self._pillow.Resampling.BILINEAR, box)
        pixels = np.asarray(resized).transpose(2, 0, 1)
        if rng and rng.random() < 0.5:
            pixels = pixels[:, :, ::-1]
        return normalise(pixels, self._mean, self._std)

    def _rgb(self, path: Path) -> Any:
        opened, _ = regular_file.open_to_read(path)
        with opened, self._pillow.open(opened, formats=FORMATS) as file:
            self._check_size(*file.size)
            if file.format == "TIFF":  # Pillow turns it as it loads it; odd XMP is an error there
                file.info.pop("xmp", None)
            file.load()  # a PNG file may have its EXIF data at its end
            with contextlib.suppress(Exception):  # of what is odd in the EXIF data
                self._turns.exif_transpose(file, in_place=True)
            image = file
            # Pillow would clip 16 bits to 8 instead of scaling them.
            if image.mode.startswith("I;16") or (image.mode == "I" and file.format == "PNG"):
                image = self._pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            elif image.mode in ("I", "F"):
                raise ValueError("it has 32 bits a pixel, of which nothing says what white is")
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


def _centre(width: int, height: int) -> Box:
    """Return the square in the middle that a resize to size * 8/7 and a crop would leave."""
    side = CENTRE * min(width, height)
    return _middle(width, height, side, side)


def _middle(width: int, height: int, w: float, h: float) -> Box:
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
