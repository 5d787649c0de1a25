"""Data sets: their files and examples, splits, scales, augmentation, and libraries they need."""

import re
import sys

import numpy as np
import pytest

from minigraph.data import CIFAR10, DataLoader, Digits, ImageFolder, Synthetic
from minigraph.data.sets import MEAN, RECORD_BYTES, STD, TEST, TRAIN, enlarge
from minigraph.errors import GraphError, install_command

# ---------------------------------------------------------------- CIFAR-10


@pytest.fixture
def cifar(tmp_path):
    rng = np.random.default_rng(0)
    for number, name in enumerate(TRAIN + TEST):
        records = rng.integers(0, 256, (number + 1, RECORD_BYTES), dtype=np.uint8)
        records[:, 0] = number
        records.tofile(tmp_path / name)
    return tmp_path


def test_cifar_reads_records_in_the_order_of_the_files(cifar):
    train, test = CIFAR10(cifar), CIFAR10(cifar, train=False)
    assert len(train) == 15 and len(test) == 6
    assert train.shape == (3, 32, 32) and train.classes[0] == "airplane"
    assert [label for _, label in train] == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]
    image, label = test[1]
    planes = np.fromfile(cifar / TEST[0], np.uint8)[RECORD_BYTES + 1 : 2 * RECORD_BYTES].reshape(
        3, 32, 32
    )
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
        pixels = augmented.example(index, np.random.default_rng(index))[0]
        padded = np.stack(
            [np.pad(p, 4, constant_values=b) for p, b in zip(image, black, strict=True)]
        )
        places = [
            (down, right, flip)
            for down in range(9)
            for right in range(9)
            for flip in (1, -1)
            if np.allclose(
                padded[:, down : down + 32, right : right + 32][..., ::flip], pixels, atol=1e-5
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


LABELLED = bytearray(4 * RECORD_BYTES)
LABELLED[3 * RECORD_BYTES] = 10


@pytest.mark.parametrize(
    ("data", "text"),
    [
        *((bytes(n), f"{n} bytes in") for n in (0, 1, RECORD_BYTES - 1, 2 * RECORD_BYTES + 5)),
        (LABELLED, "label 10 in record 3 of"),
    ],
)
def test_a_damaged_cifar_file_is_an_error_that_names_it(cifar, data, text):
    (cifar / TRAIN[1]).write_bytes(data)
    with pytest.raises(GraphError, match=f"{text} .*{TRAIN[1]}"):
        CIFAR10(cifar)


# ---------------------------------------------------------------- digits


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


# ---------------------------------------------------------------- synthetic images


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


# ---------------------------------------------------------------- optional libraries


@pytest.mark.parametrize(
    "module, make", [("sklearn.datasets", Digits), ("PIL.Image", lambda: ImageFolder("."))]
)
def test_an_absent_library_is_an_error_that_says_what_to_install(monkeypatch, module, make):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(GraphError, match=re.escape(install_command("data"))):
        make()
