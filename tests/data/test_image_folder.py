"""Folders of images: which are read, how they are decoded, cut and turned."""

import itertools
import shutil
import struct
import warnings

import numpy as np
import pytest
from data_sets import same

from minigraph.data import DataLoader, ImageFolder, read_image
from minigraph.data.folder import _random_box
from minigraph.errors import GraphError


@pytest.fixture
def folder(pillow, tmp_path):
    rng = np.random.default_rng(0)
    for name, files in {"dog": ("b.jpg", "a.JPEG"), "cat": ("c.PNG", "notes.txt")}.items():
        (tmp_path / name).mkdir()
        for file in files:
            if file == "notes.txt":
                (tmp_path / name / file).write_text("not an image, and not part of the set")
            else:
                pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
                pillow.fromarray(pixels).save(tmp_path / name / file)
    return tmp_path


PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}


def test_a_folder_of_images_is_sorted_by_class_and_name(folder):
    images = ImageFolder(folder, size=7)
    assert images.classes == ("cat", "dog") and images.shape == (3, 7, 7)
    assert [label for _, label in images] == [0, 1, 1]
    assert [path.name for path, _ in images._files] == ["c.PNG", "a.JPEG", "b.jpg"]
    image, _ = images[0]
    assert image.dtype == np.float32 and image.shape == (3, 7, 7) and image.flags.c_contiguous


def test_a_plain_image_is_its_centre_after_a_resize_of_the_short_side(pillow, tmp_path):
    (tmp_path / "only").mkdir()
    ramp = np.linspace(0, 255, 400).astype(np.uint8)
    pixels = np.stack(np.broadcast_arrays(ramp[:200, None], ramp, ramp[::-1]), axis=-1)
    pillow.fromarray(pixels).save(tmp_path / "only" / "ramp.png")
    ((image, _),) = ImageFolder(tmp_path, size=56, **PLAIN)
    resized = pillow.fromarray(pixels).resize((128, 64), pillow.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((36, 4, 92, 60))).transpose(2, 0, 1) / 255
    assert np.abs(image - expected).max() <= 1.01 / 255
    normal, _ = ImageFolder(tmp_path, size=56)[0]
    scaled = (image - np.reshape((0.485, 0.456, 0.406), (3, 1, 1))) / np.reshape(
        (0.229, 0.224, 0.225), (3, 1, 1)
    )
    assert np.allclose(normal, scaled, atol=1e-5)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGB", "RGBA", "CMYK", "1", "I;16"])
def test_every_kind_of_image_becomes_rgb(pillow, tmp_path, mode):
    (tmp_path / "only").mkdir()
    grey = pillow.fromarray(np.full((9, 9), 128, np.uint8))
    file = tmp_path / "only" / ("x.jpg" if mode == "CMYK" else "x.png")
    if mode == "I;16":
        pillow.fromarray(np.full((9, 9), 128 << 8, np.uint16)).save(file)
    elif mode == "P":
        grey.convert("P").save(file, transparency=bytes([0, 9, 99]))
    elif mode == "1":
        grey.point(lambda value: 255).convert("1").save(file)
    else:
        grey.convert("RGB").convert(mode).save(file)
    image, _ = ImageFolder(tmp_path, size=4, **PLAIN)[0]
    assert image.shape == (3, 4, 4)
    assert np.abs(image - (1 if mode == "1" else 128 / 255)).max() < 0.02


FORMATS = {"jpg": {"quality": 95, "subsampling": 0}, "png": {}, "webp": {"lossless": True}}
FORMATS |= {"bmp": {}, "tif": {}, "tiff": {"compression": "tiff_lzw"}}
TURNED = {  # for each orientation, how a camera stores the pixels of an upright photograph
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: x.transpose(1, 0, 2)[::-1],
    7: lambda x: x.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda x: x.transpose(1, 0, 2)[:, ::-1],
}
CORNERS = np.zeros((16, 24, 3), np.uint8)
CORNERS[:8, :, 0] = CORNERS[:, :12, 1] = 255


def photograph(pillow, path, orientation=1, **settings):
    """Save CORNERS as a camera does that was held in another way."""
    stored = np.ascontiguousarray(TURNED[orientation](CORNERS))
    pillow.fromarray(stored).save(path, **FORMATS[path.suffix[1:]], **settings)
    return path


def is_upright(path):
    image = read_image(path, 8, **PLAIN)
    return np.abs(image - read_image(path.parent / "upright.png", 8, **PLAIN)).max() < 0.1


def exif_data(order, *entries):
    """Return EXIF data with entries of (tag, type, count, four bytes)."""
    packed = b"".join(struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries)
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, len(entries))
    return b"Exif\0\0" + start + packed + bytes(4)


def orientation_in(order, number, kind=3):
    return 0x0112, kind, 1, struct.pack(order + {3: "HH", 4: "I"}[kind], *(number, 0)[: 5 - kind])


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_photograph_is_upright_however_the_camera_was_held(pillow, tmp_path, suffix, orientation):
    photograph(pillow, tmp_path / "upright.png")
    exif = pillow.Exif()
    exif[0x0112] = orientation
    if suffix == "bmp":
        exif, orientation = None, 1
    assert is_upright(photograph(pillow, tmp_path / f"x.{suffix}", orientation, exif=exif))


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of what it does not understand
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_odd_data_beside_the_orientation_do_no_harm(pillow, tmp_path, suffix, order):
    photograph(pillow, tmp_path / "upright.png")
    path = tmp_path / f"x.{suffix}"
    for tag, kind, count, value in itertools.product(
        (0x010F, 0x8769), (1, 2, 7, 99), (0, 1, 2), (b"\xff\xfe\x00\x80", bytes(4))
    ):
        odd = (tag, kind, count, value)
        both = sorted([orientation_in(order, 6, kind=4 if count else 3), odd])
        photograph(pillow, path, 6, exif=exif_data(order, *both))
        assert is_upright(path), odd
    xmp = b"\xff\xfe no UTF-8 \x80"
    settings = {"exif": exif_data(order, orientation_in(order, 8)), "xmp": xmp}
    if suffix != "png":
        assert is_upright(photograph(pillow, path, 8, **settings))
    for number in (0, 9, 255):
        exif = exif_data(order, orientation_in(order, number))
        assert is_upright(photograph(pillow, path, exif=exif))
    cut_off = exif_data(order, (0x010F, 5, 1, b"\xff\xfe\x00\x80"))[:-9]
    assert is_upright(photograph(pillow, path, exif=cut_off))


@pytest.mark.parametrize("suffix", ["png", "tif", "tiff"])
def test_grey_of_16_bits_is_scaled_and_of_32_bits_refused(pillow, tmp_path, suffix):
    grey = np.linspace(0, 65535, 81).astype(np.uint16).reshape(9, 9)
    path = tmp_path / f"x.{suffix}"
    pillow.fromarray(grey).save(path, **FORMATS[suffix])
    image = read_image(path, 9, **PLAIN)
    pillow.fromarray((grey >> 8).astype(np.uint8)).save(path, **FORMATS[suffix])
    np.testing.assert_array_equal(image, read_image(path, 9, **PLAIN))
    if suffix != "png":
        pillow.fromarray(grey.astype(np.float32)).save(path)
        with pytest.raises(GraphError, match="32 bits a pixel"):
            read_image(path)


def test_hidden_and_system_folders_and_files_are_no_classes_and_no_pictures(pillow, folder):
    for name in (".ipynb_checkpoints", "__MACOSX", ".git", "@eaDir"):
        (folder / name).mkdir()
        (folder / name / "x.png").write_bytes(b"")
    for name in ("._b.jpg", ".hidden.png", "Thumbs.db", "desktop.ini"):
        (folder / "dog" / name).write_bytes(b"")
    (folder / "dog" / ".cache.png").mkdir()
    images = ImageFolder(folder, size=7)
    assert images.classes == ("cat", "dog")
    assert [path.name for path, _ in images._files] == ["c.PNG", "a.JPEG", "b.jpg"]


def test_an_image_of_one_pixel_and_one_very_wide_are_enlarged(pillow, tmp_path):
    (tmp_path / "only").mkdir()
    for name, size in (("dot", (1, 1)), ("line", (500, 1)), ("pole", (1, 500))):
        pillow.new("RGB", size, (255, 255, 255)).save(tmp_path / "only" / f"{name}.png")
    for augment in (False, True):
        images = ImageFolder(tmp_path, size=8, augment=augment, **PLAIN)
        for index in range(3):
            image, _ = images.example(index, np.random.default_rng(0))
            assert image.shape == (3, 8, 8) and image.min() == 1


def test_augmentation_of_a_folder_is_the_generators_alone(folder):
    images = ImageFolder(folder, size=7, augment=True)
    one, again, other = (images.example(1, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    plain = ImageFolder(folder, size=7)
    assert np.array_equal(images[1][0], plain[1][0])
    assert np.array_equal(plain.example(1, np.random.default_rng(1))[0], plain[1][0])
    for workers in (0, 3):
        loaders = (DataLoader(images, 2, shuffle=True, workers=w) for w in (0, workers))
        assert same(*loaders)


def test_a_random_part_has_the_published_areas_and_ratios():
    rng = np.random.default_rng(0)
    boxes = np.array([_random_box(400, 300, rng) for _ in range(2000)])
    w, h = (boxes[:, 2:] - boxes[:, :2]).T
    assert boxes.min() >= 0 and boxes[:, 2].max() <= 400 and boxes[:, 3].max() <= 300
    area, ratio = w * h / (400 * 300), w / h
    assert 0.078 < area.min() < 0.1 and area.max() > 0.95
    assert 0.74 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.35


POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(evil) print
"""


@pytest.mark.parametrize("kind", ["PostScript", "GIF", "PPM", "ICO"])
def test_only_formats_of_pictures_are_decoded_whatever_a_file_is_called(
    pillow, folder, kind, monkeypatch
):
    path = folder / "dog" / "b.jpg"
    if kind == "PostScript":
        path.write_bytes(POSTSCRIPT)
        plugin = pytest.importorskip("PIL.EpsImagePlugin")
        monkeypatch.setattr(plugin, "Ghostscript", lambda *args: pytest.fail("ran Ghostscript"))
    else:
        pillow.new("RGB", (8, 8)).save(path, format=kind)
    with pytest.raises(GraphError, match=r"cannot decode .*b\.jpg"):
        ImageFolder(folder, size=8)[2]


def test_a_jpeg_called_png_is_decoded(pillow, folder):
    pillow.new("RGB", (8, 8), (255, 255, 255)).save(folder / "cat" / "c.PNG", format="JPEG")
    image, _ = ImageFolder(folder, size=4, **PLAIN)[0]
    assert image.min() > 0.99


def test_an_image_with_too_many_pixels_is_not_decoded(pillow, folder, monkeypatch):
    images = ImageFolder(folder, size=8)
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 20 * 30)
    assert images[0][0].shape == (3, 8, 8)
    monkeypatch.setattr(pillow.Image, "load", lambda self: pytest.fail("decoded"))
    for limit in (20 * 30 - 1, 20 * 15 - 1):
        monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", limit)
        for action in ("error", "ignore"):
            with warnings.catch_warnings(), pytest.raises(GraphError, match=r"c\.PNG .*pixels"):
                warnings.simplefilter(action)
                images[0]


def test_the_parent_of_train_and_test_is_an_error_that_names_both(pillow, folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for part in ("train", "test"):
        shutil.copytree(folder, root / part)
    photos = str(root)
    with pytest.raises(GraphError, match="has folders of images, not images") as raised:
        ImageFolder(photos)
    reads = (f"ImageFolder({photos + '/' + part!r})" for part in ("test", "train"))
    assert str(raised.value).endswith(f"read each: {', '.join(reads)}")


def test_a_folder_without_images_or_classes_is_an_error_that_names_it(pillow, folder):
    (folder / "empty").mkdir()
    with pytest.raises(GraphError, match=r"no image in .*empty"):
        ImageFolder(folder)
    with pytest.raises(GraphError, match=r"no folder in .*empty"):
        ImageFolder(folder / "empty")
    with pytest.raises(GraphError, match=r"cannot read .*nowhere"):
        ImageFolder(folder / "nowhere")
    with pytest.raises(GraphError, match=r"cannot read .*notes\.txt"):
        ImageFolder(folder / "cat" / "notes.txt")


def test_a_picture_alone_is_read_as_those_of_a_folder(pillow, folder):
    image = read_image(folder / "dog" / "b.jpg", 7)
    assert image.dtype == np.float32 and image.flags.c_contiguous
    assert np.array_equal(image, ImageFolder(folder, 7)[2][0])
    plain = read_image(folder / "dog" / "b.jpg", 7, (0, 0, 0), (1, 1, 1))
    assert np.array_equal(plain, ImageFolder(folder, 7, **PLAIN)[2][0])
    assert read_image(folder / "dog" / "b.jpg").shape == (3, 224, 224)
    with pytest.raises(GraphError, match=r"^read_image cannot decode .*notes\.txt"):
        read_image(folder / "cat" / "notes.txt")
    with pytest.raises(GraphError, match="read_image: std is"):
        read_image(folder / "dog" / "b.jpg", std=(1, 1, 0))
