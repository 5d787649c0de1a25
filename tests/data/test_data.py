"""Data sets and the loader: what comes out, in which order, and what goes wrong how."""

import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from new_process import python

from minigraph.data import (
    CIFAR10,
    DataLoader,
    Dataset,
    Digits,
    ImageFolder,
    Synthetic,
    read_image,
)
from minigraph.data.cifar import MEAN, RECORD, STD, TEST, TRAIN
from minigraph.data.digits import enlarge
from minigraph.data.image import _random
from minigraph.distributed.world import World
from minigraph.errors import GraphError, ShapeError


class Listed:
    """The least that a loader takes: a length and items; `items` may hold exceptions."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        if isinstance(item, BaseException):
            raise item
        return item


class Noisy(Dataset):
    """A set that augments by adding noise, slowly enough for threads to overtake each other."""

    shape = (1, 2, 2)
    classes = ("only",)

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.full(self.shape, self.position(index), np.float32), 0

    def example(self, index, rng):
        image, label = self[index]
        time.sleep(0.001 * (index % 3))
        return image + rng.standard_normal(self.shape, np.float32), label


def numbered(length):
    return Listed([(np.full((1, 2, 2), i, np.float32), i) for i in range(length)])


def same(left, right):
    left, right = list(left), list(right)
    return len(left) == len(right) and all(
        np.array_equal(x, y) and np.array_equal(i, j)
        for (x, i), (y, j) in zip(left, right, strict=True)
    )


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("minigraph-data")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads() == []


# The loader


def test_batches_are_contiguous_and_keep_dtypes_but_for_pythons_numbers():
    loader = DataLoader(Listed([(np.ones((4, 3, 2), "uint8").T, 7)] * 5), batch_size=2)
    batches = list(loader)
    assert len(batches) == len(loader) == 3
    assert [len(images) for images, _ in batches] == [2, 2, 1]
    for images, labels in batches:
        assert images.dtype == np.uint8 and images.flags.c_contiguous
        assert images.shape[1:] == (2, 3, 4)
        assert labels.dtype == np.int64 and set(labels) == {7}


def test_drop_last_leaves_out_the_short_batch():
    loader = DataLoader(numbered(5), batch_size=2, drop_last=True)
    assert len(loader) == 2
    assert [labels.tolist() for _, labels in loader] == [[0, 1], [2, 3]]


def test_shuffling_visits_every_example_once_in_an_order_of_its_epoch_and_seed():
    def order(epoch, seed):
        loader = DataLoader(numbered(50), 8, shuffle=True, seed=seed)
        loader.epoch = epoch
        return np.concatenate([labels for _, labels in loader]).tolist()

    orders = [order(epoch, seed) for epoch in (0, 1) for seed in (0, 1)]
    assert all(sorted(found) == list(range(50)) for found in orders)
    assert len(set(map(tuple, orders))) == 4
    assert order(1, 1) == orders[3]


def shards(size, make):
    """Return the loaders of so many processes; `make` gets the world of each."""
    worlds = [World() for _ in range(size)]
    for rank, world in enumerate(worlds):
        world.rank, world.size = rank, size
    return [make(world) for world in worlds]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_shares_of_any_number_of_processes_make_the_same_batches(size, drop_last):
    def make(world=None):
        return DataLoader(Noisy(), 8, True, drop_last, workers=size // 2, seed=3, shard=world)

    whole, parts = make(), shards(size, make)
    for batch, *shares in zip(whole, *parts, strict=True):
        assert {len(labels) for _, labels in shares} == {len(batch[1]) // size}
        for array, found in zip(batch, zip(*shares, strict=True), strict=True):
            np.testing.assert_array_equal(np.concatenate(found), array)
    assert {len(loader) for loader in parts} == {len(whole)}


def test_of_a_last_batch_with_fewer_examples_than_processes_some_have_no_share():
    loaders = shards(4, lambda world: DataLoader(numbered(10), 8, shard=world))
    labels = [[batch.tolist() for _, batch in loader] for loader in loaders]
    assert labels == [[[0, 1]], [[2, 3], [8]], [[4, 5]], [[6, 7], [9]]]
    assert [len(loader) for loader in loaders] == [1, 2, 1, 2]


def test_processes_draw_other_numbers_for_their_shares():
    def drawn(world):
        loader = DataLoader(
            numbered(4), 4, batch_transform=lambda b, rng: rng.random(), shard=world
        )
        return next(iter(loader))

    first, second = shards(2, drawn)
    assert first == drawn(None) != second


def test_a_batch_that_processes_cannot_share_equally_is_an_error():
    text = "batch_size is 30, of which 4 processes cannot have equal shares; use a multiple of 4"
    with pytest.raises(GraphError, match=text):
        shards(4, lambda world: DataLoader(numbered(90), 30, shard=world))
    with pytest.raises(GraphError, match=r"shard is 2; it takes what mg.distributed.world"):
        DataLoader(numbered(4), shard=2)


@pytest.mark.parametrize("workers, prefetch", [(1, 0), (1, 2), (3, 1), (4, 9), (16, 2)])
def test_workers_and_prefetch_change_no_bit(workers, prefetch):
    plain = DataLoader(Noisy(), 6, shuffle=True, seed=3)
    threaded = DataLoader(Noisy(), 6, shuffle=True, seed=3, workers=workers, prefetch=prefetch)
    for _ in range(2):
        assert same(plain, threaded)


def test_no_workers_means_no_threads():
    before = threading.active_count()
    for _ in DataLoader(Noisy(), 6):
        assert threading.active_count() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_gives_the_batches_of_an_uninterrupted_one(workers):
    whole = DataLoader(Noisy(), 6, shuffle=True, seed=5)
    epochs = [list(whole) for _ in range(4)]
    resumed = DataLoader(Noisy(), 6, shuffle=True, seed=5, workers=workers)
    for epoch in range(2, 4):
        resumed.epoch = epoch
        assert same(resumed, epochs[epoch])
    assert not same(epochs[0], epochs[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_counts_up_at_the_end_and_an_abandoned_one_is_repeated(workers):
    loader = DataLoader(Noisy(), 6, shuffle=True, workers=workers)
    for images, _ in loader:
        assert loader.epoch == 0
        first = images
        break
    assert loader.epoch == 0
    assert np.array_equal(next(iter(loader))[0], first)
    list(loader)
    assert loader.epoch == 1


def test_an_example_is_augmented_alike_wherever_its_batch_is():
    class Faint(Noisy):
        def example(self, index, rng):
            image, label = self[index]
            return image + rng.random(self.shape, np.float32) / 9, label

    batches = [list(DataLoader(Faint(), n, shuffle=n == 7, seed=1)) for n in (1, 7)]
    one, other = (
        {int(image.min()): image for images, _ in found for image in images} for found in batches
    )
    assert one.keys() == other.keys() == set(range(20))
    assert all(np.array_equal(one[i], other[i]) for i in one)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_in_an_example_arrives_in_place_of_its_batch(workers):
    items = numbered(12).items
    items[7] = RuntimeError("seven")
    found = []
    with pytest.raises(RuntimeError, match="seven"):
        for _, labels in DataLoader(Listed(items), 3, workers=workers, prefetch=4):
            found.append(labels.tolist())
    assert found == [[0, 1, 2], [3, 4, 5]]
    assert threads() == []


@pytest.mark.parametrize("workers", [0, 3])
def test_images_of_different_shapes_in_a_batch_are_a_shape_error_naming_both(workers):
    items = numbered(6).items
    items[4] = (np.zeros((1, 2, 3), np.float32), 4)
    with pytest.raises(ShapeError, match=r"example 3\[0\] has shape \(1, 2, 2\), example 4\[0\] "):
        list(DataLoader(Listed(items), 3, workers=workers))
    assert len(list(DataLoader(Listed(items), 1, workers=workers))) == 6


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"workers": -1}, "workers is -1"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"batch_size": 6, "drop_last": True}, "no batch to give"),
    ],
)
def test_a_bad_argument_is_an_error_that_names_it(arguments, message):
    with pytest.raises(GraphError, match=message):
        DataLoader(numbered(5), **arguments)


def test_an_empty_data_set_and_a_negative_epoch_are_errors():
    with pytest.raises(GraphError, match="length is 0"):
        DataLoader(Listed([]))
    loader = DataLoader(numbered(5))
    loader.epoch = -1
    with pytest.raises(GraphError, match="epoch is -1"):
        iter(loader)


@pytest.mark.parametrize("error", [None, ZeroDivisionError, KeyboardInterrupt])
def test_leaving_early_ends_the_threads(error):
    loader = DataLoader(Noisy(), 2, workers=3, prefetch=5)

    def leave():
        for _ in loader:
            assert threads()
            if error:
                raise error
            break

    if error:
        with pytest.raises(error):
            leave()
    else:
        leave()
    assert threads() == []


def test_an_iterator_that_is_dropped_or_never_started_leaves_no_threads():
    loader = DataLoader(Noisy(), 2, workers=3)
    iter(loader)
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert threads() == []


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_ctrl_c_while_waiting_for_a_batch_prepares_few_more_examples(ctrl_c):
    prepared = []

    class Stuck(Noisy):
        def example(self, index, rng):
            if index == 5:  # the loader has started its threads and waits
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.01)
            prepared.append(index)
            return self[index]

        def __len__(self):
            return 2000

    with pytest.raises(KeyboardInterrupt):
        list(DataLoader(Stuck(), 1000, workers=2))
    assert len(prepared) < 500
    assert threads() == []


def test_two_iterations_of_a_loader_at_once_do_not_disturb_each_other():
    loader = DataLoader(Noisy(), 6, workers=2)
    expected = list(DataLoader(Noisy(), 6))
    pairs = list(zip(loader, loader, strict=True))
    assert same([one for one, _ in pairs], expected)
    assert same([other for _, other in pairs], expected)


# Synthetic


def test_synthetic_examples_depend_on_seed_and_index_alone():
    one, same_again, other = (Synthetic((2, 5, 6), 3, 12, seed=seed) for seed in (1, 1, 2))
    assert one.shape == (2, 5, 6) and one.classes == ("0", "1", "2") and len(one) == 12
    image, label = one[7]
    assert image.dtype == np.float32 and image.shape == one.shape and label == 1
    assert np.array_equal(image, same_again[7][0])
    assert not np.array_equal(image, other[7][0])
    assert not np.array_equal(image, one[10][0])


def test_synthetic_classes_can_be_told_apart_also_in_a_set_of_another_seed():
    train, test = (Synthetic((3, 8, 8), 5, 500, seed=seed) for seed in (0, 1))
    centres = [np.mean([train[i][0] for i in range(c, 500, 5)], axis=0) for c in range(5)]
    right = [
        np.argmin([np.square(image - centre).sum() for centre in centres]) == label
        for image, label in test
    ]
    assert np.mean(right) > 0.95


def test_indexes_count_from_the_end_and_outside_of_the_set_are_index_errors():
    synthetic = Synthetic((1, 2, 2), 2, length=4)
    assert np.array_equal(synthetic[-1][0], synthetic[3][0])
    for index in (4, -5):
        with pytest.raises(IndexError, match="Synthetic, which has 4"):
            synthetic[index]
    assert len(list(synthetic)) == 4


def test_synthetic_refuses_what_is_no_shape():
    with pytest.raises(ShapeError, match=r"\(2, 2\)"):
        Synthetic((2, 2), 2)
    with pytest.raises(GraphError, match=r"Synthetic: shape is \(0, 2, 2\)"):
        Synthetic((0, 2, 2), 2)
    with pytest.raises(GraphError, match="classes is 0"):
        Synthetic((1, 2, 2), 0)


# Digits


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn")
    return Digits(), Digits(train=False)


def stacked(dataset):
    ((images, labels),) = DataLoader(dataset, len(dataset))
    return images, labels


def test_digits_are_split_alike_in_each_class_without_overlap(digits):
    (train, train_labels), (test, test_labels) = map(stacked, digits)
    assert len(train) == 1437 and len(test) == 360
    assert digits[0].shape == (1, 8, 8) and digits[0].classes == tuple("0123456789")
    counts, test_counts = np.bincount(train_labels), np.bincount(test_labels)
    assert np.abs(test_counts - (counts + test_counts) / 5).max() <= 1
    # Every image of the source is in one part or the other, repeated ones as often as there.
    source = pytest.importorskip("sklearn.datasets").load_digits().images.reshape(-1, 64)
    both = np.concatenate([train, test]).reshape(-1, 64)
    both = np.round((both - both.min()) * 16 / np.ptp(both))
    assert np.array_equal(np.unique(both, axis=0), np.unique(source, axis=0))
    assert len(both) == len(source) and both.sum() == source.sum()


def test_digits_split_is_the_one_it_always_was(digits):
    labels = stacked(digits[1])[1]
    assert "".join(map(str, labels[:24])) == "027700981702803346931128"
    assert np.array_equal(stacked(Digits(train=False))[0], stacked(digits[1])[0])


@pytest.mark.parametrize("size", [8, 20])
def test_digits_to_train_have_mean_zero_and_deviation_one(digits, size):
    images, _ = stacked(Digits(size=size, channels=3))
    assert images.shape == (1437, 3, size, size)
    assert abs(images.mean()) < 1e-5 and abs(images.std() - 1) < 1e-5
    assert np.array_equal(images[:, 0], images[:, 2])
    test, _ = stacked(Digits(train=False, size=size))
    assert abs(test.mean()) < 0.05 and abs(test.std() - 1) < 0.05


def test_a_digit_by_index_is_the_one_in_the_batch(digits):
    images, labels = stacked(digits[0])
    image, label = digits[0][-3]
    assert np.array_equal(image, images[-3]) and label == labels[-3]


def test_an_epoch_of_digits_takes_each_batch_at_once(digits):
    class Counted(Digits):
        def batch(self, indexes, rngs):
            taken.append(len(indexes))
            return super().batch(indexes, rngs)

    taken = []
    list(DataLoader(Counted(), 100, shuffle=True))
    assert taken == [100] * 14 + [37]


def test_enlarging_is_pillows_bilinear(pillow):
    images = np.random.default_rng(0).random((3, 8, 8), np.float32)
    for size in (8, 13, 32):
        expected = [
            np.asarray(pillow.fromarray(image).resize((size, size), pillow.Resampling.BILINEAR))
            for image in images
        ]
        assert np.allclose(enlarge(images, size), expected, atol=1e-5)


@pytest.mark.parametrize("arguments", [{"size": 7}, {"size": 8.5}, {"channels": 0}])
def test_digits_refuse_a_bad_size(arguments):
    with pytest.raises(GraphError, match=f"{next(iter(arguments))} is"):
        Digits(**arguments)


# CIFAR-10


@pytest.fixture
def cifar(tmp_path):
    rng = np.random.default_rng(0)
    for number, name in enumerate(TRAIN + TEST):
        records = rng.integers(0, 256, (number + 1, RECORD), dtype=np.uint8)
        records[:, 0] = number
        records.tofile(tmp_path / name)
    return tmp_path


def test_cifar_reads_records_in_the_order_of_the_files(cifar):
    train, test = CIFAR10(cifar), CIFAR10(cifar, train=False)
    assert len(train) == 15 and len(test) == 6
    assert train.shape == (3, 32, 32) and train.classes[0] == "airplane"
    assert [label for _, label in train] == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]
    image, label = test[1]
    planes = np.fromfile(cifar / TEST[0], np.uint8)[RECORD + 1 : 2 * RECORD].reshape(3, 32, 32)
    mean, std = (np.reshape(numbers, (3, 1, 1)) for numbers in (MEAN, STD))
    assert label == 5 and image.dtype == np.float32
    assert np.allclose(image, (planes / 255 - mean) / std, atol=1e-5)


def test_cifar_is_found_in_its_published_subfolder(cifar, tmp_path_factory):
    above = tmp_path_factory.mktemp("above")
    cifar.rename(above / "cifar-10-batches-bin")
    assert len(CIFAR10(above, train=False)) == 6


def test_cifar_augmentation_moves_and_flips_the_very_pixels(cifar):
    plain, augmented = CIFAR10(cifar), CIFAR10(cifar, augment=True)
    black = (-np.array(MEAN) / STD).astype(np.float32)
    seen = set()
    for index in range(15):
        image = plain[index][0]
        assert np.array_equal(augmented[index][0], image)
        found = augmented.example(index, np.random.default_rng(index))[0]
        padded = np.stack(
            [np.pad(p, 4, constant_values=b) for p, b in zip(image, black, strict=True)]
        )
        places = [
            (down, right, flip)
            for down in range(9)
            for right in range(9)
            for flip in (1, -1)
            if np.allclose(
                padded[:, down : down + 32, right : right + 32][..., ::flip], found, atol=1e-5
            )
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) > 10 and {flip for *_, flip in seen} == {1, -1}


def test_cifar_augmentation_is_the_same_in_a_batch_alone_and_in_threads(cifar):
    augmented = CIFAR10(cifar, augment=True)
    loaders = [DataLoader(augmented, n, workers=w, seed=2) for n, w in ((4, 0), (1, 0), (4, 2))]
    images = [np.concatenate([images for images, _ in loader]) for loader in loaders]
    assert np.array_equal(images[0], images[1]) and np.array_equal(images[0], images[2])
    again = np.concatenate([images for images, _ in loaders[0]])
    assert not np.array_equal(again, images[0])


def test_a_missing_cifar_file_is_an_error_that_names_it(cifar):
    (cifar / TRAIN[3]).unlink()
    with pytest.raises(GraphError, match=TRAIN[3]):
        CIFAR10(cifar)
    assert len(CIFAR10(cifar, train=False)) == 6
    with pytest.raises(GraphError, match="nowhere"):
        CIFAR10(cifar / "nowhere")


@pytest.mark.parametrize("length", [0, 1, RECORD - 1, 2 * RECORD + 5])
def test_a_cifar_file_of_a_wrong_length_is_an_error_that_names_it(cifar, length):
    (cifar / TRAIN[1]).write_bytes(bytes(length))
    with pytest.raises(GraphError, match=f"{length} bytes in .*{TRAIN[1]}"):
        CIFAR10(cifar)


def test_a_label_out_of_range_in_cifar_names_file_and_record(cifar):
    records = np.fromfile(cifar / TRAIN[4], np.uint8)
    records[3 * RECORD] = 10
    records.tofile(cifar / TRAIN[4])
    with pytest.raises(GraphError, match=f"label 10 in record 3 of .*{TRAIN[4]}"):
        CIFAR10(cifar)


def test_a_cifar_file_that_is_no_regular_file_is_not_waited_for(cifar, endless, promptly):
    path = cifar / TEST[0]
    path.unlink()
    endless(path)
    with pytest.raises(GraphError, match=f"{TEST[0]} .*no regular file"):
        CIFAR10(cifar, train=False)


# ImageFolder


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


def test_an_image_is_turned_as_its_exif_data_say(pillow, tmp_path):
    (tmp_path / "only").mkdir()
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8] = 255
    exif = pillow.Exif()
    exif[0x0112] = 6  # stored lying on its left side: to be turned clockwise
    pillow.fromarray(pixels).save(tmp_path / "only" / "x.jpg", exif=exif, quality=95)
    image, _ = ImageFolder(tmp_path, size=8, **PLAIN)[0]
    assert image[:, :3].min() > 0.9 and image[:, 5:].max() < 0.1


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
    boxes = np.array([_random(400, 300, rng) for _ in range(2000)])
    w, h = (boxes[:, 2:] - boxes[:, :2]).T
    assert boxes.min() >= 0 and boxes[:, 2].max() <= 400 and boxes[:, 3].max() <= 300
    area, ratio = w * h / (400 * 300), w / h
    assert 0.078 < area.min() < 0.1 and area.max() > 0.95
    assert 0.74 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.35


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "folder"])
@pytest.mark.parametrize("file", ["dog/b.jpg", "cat/c.PNG"])
def test_an_image_that_does_not_decode_is_an_error_that_names_it(folder, damage, file):
    path = folder / file
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"GIF"}[damage])
    for workers in (0, 2):
        with pytest.raises(GraphError, match=f"cannot decode .*{path.name}"):
            list(DataLoader(ImageFolder(folder, size=8), 2, workers=workers))


def test_an_image_that_is_no_regular_file_is_not_waited_for(folder, endless, promptly):
    path = folder / "dog" / "b.jpg"
    path.unlink()
    endless(path)
    with pytest.raises(GraphError, match=r"cannot decode .*b\.jpg .*no regular file"):
        ImageFolder(folder, size=8)[2]


POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(evil) print
"""


@pytest.mark.parametrize("kind", ["PostScript", "GIF", "BMP", "TIFF", "WEBP"])
def test_only_jpeg_and_png_are_decoded_whatever_a_file_is_called(pillow, folder, kind, monkeypatch):
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


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"size": 0}, "size is 0"),
        ({"mean": (0.5,)}, "mean is"),
        ({"std": (1, 1, 0)}, "std is"),
    ],
)
def test_image_folder_refuses_bad_numbers(folder, arguments, message):
    with pytest.raises(GraphError, match=message):
        ImageFolder(folder, **arguments)


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


# Optional libraries


def test_importing_the_package_loads_no_optional_library():
    code = (
        "import sys, minigraph.data\n"
        "print([name for name in ('sklearn', 'PIL', 'scipy') if name in sys.modules])"
    )
    assert python("-c", code)[0].strip() == "[]"


@pytest.mark.parametrize(
    "module, make",
    [("sklearn.datasets", Digits), ("PIL.Image", lambda: ImageFolder("."))],
)
def test_an_absent_library_is_an_error_that_says_what_to_install(monkeypatch, module, make):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(GraphError, match=r"pip install minigraph\[data\]"):
        make()
