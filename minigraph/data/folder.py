"""Photographs on disk, one folder for each class, with the usual preparation for ImageNet."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import NUMBER, Count, FilePath, Kind, checked, first_names, with_predicate
from minigraph.data.dataset import Dataset, Example, Images, library, normalise
from minigraph.errors import GraphError, reason
from minigraph.platform import regular_file

# Pillow detects a file's format by its contents; for PostScript it would run Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

CROP_FRACTION = 7 / 8  # of the short side, which a central crop keeps: 224 of 256
CROP_AREA = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)

Box = tuple[float, float, float, float]


THREE = with_predicate(lambda numbers: len(numbers) == 3, lambda v: tuple(map(NUMBER.parse, v)))
Channels = Annotated[Sequence[float], Kind("a number for each of 3 channels", THREE)]


@checked
def read_image(
    path: FilePath, size: Count = 224, mean: Channels = MEAN, std: Channels = STD
) -> Images:
    """Return the picture in a file, prepared as `ImageFolder` does without `augment`.

    It is float32 (3, size, size).  GraphError for a file that cannot be read.
    """
    return ImageReader("read_image", size, mean, std).read(Path(path), None)


class ImageReader:
    """A reader of pictures of one size, as `ImageFolder` documents; errors name `user`."""

    def __init__(self, user: str, size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        if min(std) <= 0:
            raise GraphError(f"{user}: std is {std}; it takes positive numbers")
        self._user, self._size, self._mean, self._std = user, size, mean, std
        self._pillow, self._turns = library("PIL.Image", user), library("PIL.ImageOps", user)

    def read(self, path: Path, rng: np.random.Generator | None) -> Images:
        """Return a picture [3, size, size]: its centre, or with `rng` a random part."""
        try:
            image = self._rgb(path)
        # Pillow's decoders raise errors of many classes, from SyntaxError to struct.error.
        except Exception as error:
            if why := getattr(error, "strerror", None):  # an error of the system, not of a decoder
                raise GraphError(f"{self._user} cannot read {path} ({why})") from error
            raise GraphError(
                f"{self._user} cannot decode {path} ({type(error).__name__}: {error}); "
                "replace the file or remove it"
            ) from error
        (width, height), side = image.size, CROP_FRACTION * min(image.size)
        box = _random_box(width, height, rng) if rng else _central_box(width, height, side, side)
        resized = image.resize((self._size, self._size), self._pillow.Resampling.BILINEAR, box)
        pixels = np.asarray(resized).transpose(2, 0, 1)
        if rng and rng.random() < 0.5:
            pixels = pixels[:, :, ::-1]
        return normalise(pixels, self._mean, self._std)

    def _rgb(self, path: Path) -> Any:
        opened, _ = regular_file.open_to_read(path)
        with opened, self._pillow.open(opened, formats=FORMATS) as file:
            (width, height), limit = file.size, self._pillow.MAX_IMAGE_PIXELS
            if limit is not None and width * height > limit:  # Pillow only warns, and decodes them
                raise ValueError(
                    f"{width} x {height} pixels are more than PIL.Image.MAX_IMAGE_PIXELS, {limit}"
                )
            if file.format == "TIFF":  # Pillow rotates it while loading, which malformed XMP breaks
                file.info.pop("xmp", None)
            file.load()  # because the EXIF data of a PNG file may be at its end
            with contextlib.suppress(Exception):  # errors of malformed EXIF data
                self._turns.exif_transpose(file, in_place=True)
            image = file
            # Pillow would clip 16 bits to 8 instead of scaling them.
            if image.mode.startswith("I;16") or (image.mode == "I" and file.format == "PNG"):
                image = self._pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            elif image.mode in ("I", "F"):
                raise ValueError("it has 32 bits a pixel, and does not define which value is white")
            elif "transparency" in image.info:
                # Pillow warns if a palette with transparent entries is converted to RGB directly.
                image = image.convert("RGBA")
            return image.convert("RGB")


def _central_box(width: int, height: int, w: float, h: float) -> Box:
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def _random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Return a box of random area and ratio; after ten that do not fit, the largest central box."""
    for _ in range(10):
        area = width * height * rng.uniform(*CROP_AREA)
        ratio = math.exp(rng.uniform(math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    return _central_box(
        width, height, min(width, height * CROP_RATIO[1]), min(height, width / CROP_RATIO[0])
    )


SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
# Folders that operating systems add to those of users; names that begin with a dot are hidden.
SYSTEM_FOLDERS = frozenset(
    ("__MACOSX", "__pycache__", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
)


class ImageFolder(Dataset):
    """The pictures in `directory`'s folders; a folder's name is its class.

    Pictures are JPEG, PNG, WebP, BMP and TIFF files (.jpg, .jpeg, .png, .webp, .bmp, .tif, .tiff).
    Hidden files and folders, and those of systems such as `__MACOSX`, are not part of the set.

    By default, an image is scaled so that its short side is size * 8/7, and its centre is cropped.
    With `augment`, the crop is random (8 to 100 % of the area, ratio of the sides 3:4 to 4:3), and
    half of the images are flipped, as in C. Szegedy et al. (2015), Going Deeper with Convolutions.
    Cropping and scaling are one bilinear step.  Colours are converted to RGB and scaled by `mean`
    and `std`; images are rotated by their EXIF data.  Classes and files are sorted by name; folders
    inside a class folder and files of other kinds are not part of the set.  An image of more than
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
    return name.startswith(".") or name in SYSTEM_FOLDERS


def _folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not _hidden(p.name)))


def _named_as_images(folder: Path) -> list[str]:
    files = (name for name in os.listdir(folder) if not _hidden(name))
    return sorted(name for name in files if name.lower().endswith(SUFFIXES))


def _images(folder: Path) -> list[str]:
    """Return the names of the images in a class's folder; raise GraphError without any."""
    names = _named_as_images(folder)
    if names:
        return names
    if any(_named_as_images(folder / name) for name in _folders(folder)):
        root = folder.parent
        parts = first_names([f"ImageFolder({str(root / name)!r})" for name in _folders(root)])
        raise GraphError(
            f"ImageFolder({str(root)!r}): {folder} has folders of images, not images; if "
            f"{root} holds data sets, such as train and test, read each: {parts}"
        )
    raise GraphError(
        f"ImageFolder found no image in {folder}; it takes {', '.join(SUFFIXES)} files"
    )
