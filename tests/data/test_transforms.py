"""The loader with transforms, augmenting sets and collate functions."""

import numpy as np
import pytest
from data_sets import WORKERS, Noisy, values

from minigraph.data import DataLoader

SOURCES = {
    "arrays": np.arange(20.0).reshape(20, 1),
    "list": [np.array([i], float) for i in range(20)],
    "iterable": lambda: ([float(i)] for i in range(20)),
    "data set": Noisy(),
}


def moved(example, rng):
    if isinstance(example, tuple):
        return example[0] + rng.random()
    return np.add(example, rng.random())


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_random_transforms_depend_on_seed_epoch_and_place_alone(source):
    def scaled(batch, rng):
        return batch * rng.random()

    def loader(workers, seed=1):
        transforms = {"transform": moved, "batch_transform": scaled}
        return DataLoader(source, 6, workers=workers, seed=seed, **transforms)

    plain = loader(0)
    first, second = values(plain), values(plain)
    assert first != second
    for workers in (1, 3):
        threaded = loader(workers)
        assert [values(threaded), values(threaded)] == [first, second]
    assert values(loader(0, seed=2)) != first
    # The epoch and the seed are no sum.
    other = loader(0, seed=0)
    other.epoch = 1
    assert values(other) not in (first, second)


@WORKERS
def test_a_set_that_augments_does_so_without_a_transform_too(workers):
    loader = DataLoader(Noisy(), 7, workers=workers)
    first, second = (np.concatenate([images for images, _ in loader]) for _ in range(2))
    moved_by = (first[:, 0, 0, 0] - np.arange(20), second[:, 0, 0, 0] - np.arange(20))
    assert all(moves.min() > 0 and moves.max() < 1 for moves in moved_by)
    assert len(set(np.concatenate(moved_by))) > 30


def test_plain_functions_transform_examples_and_batches():
    x, y = np.arange(4, dtype="uint8"), np.arange(4)
    loader = DataLoader(
        (x, y),
        2,
        transform=lambda example: {"x": example[0] / 255, "y": example[1]},
        batch_transform=lambda batch: (batch["x"].astype("float32"), batch["y"] + 1),
    )
    assert [(a.dtype.name, b.tolist()) for a, b in loader] == [
        ("float32", [1, 2]),
        ("float32", [3, 4]),
    ]
    assert values(DataLoader(x, 4, batch_transform=np.negative)) == [(-x).tolist()]
    assert values(DataLoader(x, 4, transform=np.float64)) == [x.tolist()]


@WORKERS
def test_a_collate_function_makes_the_batches(workers):
    def padded(texts):
        longest = max(map(len, texts))
        return np.array([[*text, *[0] * (longest - len(text))] for text in texts])

    texts = [[1], [2, 3], [4, 5, 6]]
    loader = DataLoader(texts, 2, workers=workers, collate=padded)
    assert values(loader) == [[[1, 0], [2, 3]], [[4, 5, 6]]]
    arrays = DataLoader(np.arange(3), 2, collate=sum, workers=workers)
    assert [int(batch) for batch in arrays] == [1, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_says_of_which_example_it_is(workers):
    def broken(example):
        if example == 7:
            raise KeyError("box")
        return example

    loader = DataLoader(list(range(10)), batch_size=4, workers=workers, transform=broken)
    with pytest.raises(KeyError, match="box") as error:
        list(loader)
    assert error.value.__notes__ == ["This was example 7 of a DataLoader, epoch 0."]
