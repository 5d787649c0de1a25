"""Synthetic images: the same for the same seed, and classes that can be told apart."""

import numpy as np
import pytest

from minigraph.data import (
    Synthetic,
)
from minigraph.errors import GraphError, ShapeError


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
