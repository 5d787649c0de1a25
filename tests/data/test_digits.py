"""The handwritten digits: their split, scale and sizes."""

import numpy as np
import pytest

from minigraph.data import (
    DataLoader,
    Digits,
)
from minigraph.data.digits import enlarge
from minigraph.errors import GraphError


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
