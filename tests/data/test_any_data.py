"""The loader with data of any kind: arrays, dicts, and errors for unsupported data."""

import collections
import time
from pathlib import Path

import numpy as np
import pytest
from data_sets import WORKERS, values

from minigraph.data import DataLoader
from minigraph.errors import ShapeError


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64", "bool", "float16", "float64", "<U3"])
def test_arrays_in_a_tuple_are_examples_and_keep_their_dtypes(dtype):
    x, y = np.arange(5 * 6).reshape(5, 2, 3).astype(dtype), np.arange(5) / 2
    batches = list(DataLoader((x, y), 2))
    assert [(a.dtype, b.dtype) for a, b in batches] == [(x.dtype, y.dtype)] * 3
    assert [type(batch) for batch in batches] == [tuple] * 3
    np.testing.assert_array_equal(np.concatenate([a for a, _ in batches]), x)
    np.testing.assert_array_equal(np.concatenate([b for _, b in batches]), y)


def test_one_array_and_a_dict_of_arrays_are_examples():
    tokens, masks = np.arange(12, dtype="uint16").reshape(4, 3), np.eye(4, dtype=bool)
    assert values(DataLoader(tokens, 3)) == [tokens[:3].tolist(), tokens[3:].tolist()]
    first, second = DataLoader({"tokens": tokens, "mask": masks, "list": [1, 2, 3, 4]}, 2)
    assert list(first) == ["tokens", "mask", "list"]
    assert second["mask"].tolist() == masks[2:].tolist() and second["list"].tolist() == [3, 4]


def test_examples_of_arrays_stay_together_when_they_are_shuffled():
    x = np.arange(100)
    loader = DataLoader((x, {0: x}[0] * 2), 7, shuffle=True, workers=2)
    batches = list(loader)
    assert all((y == 2 * x).all() for x, y in batches)
    order = np.concatenate([x for x, _ in batches])
    assert sorted(order) == list(x) and list(order) != list(x)


def test_batches_of_arrays_are_new_and_contiguous():
    x = np.asfortranarray(np.zeros((4, 3, 2)))
    (batch,) = DataLoader(x, 4)
    assert batch.flags.c_contiguous
    batch[:] = 1
    assert x.max() == 0


def test_a_memory_map_is_read_batch_by_batch(tmp_path):
    rows, width = 1 << 14, 1 << 14  # 512 MB, of which the file system stores none
    path = tmp_path / "tokens"
    with open(path, "wb") as file:
        file.truncate(2 * rows * width)
    tokens = np.memmap(path, "uint16", "r", shape=(rows, width))
    before = resident("RssAnon"), resident("RssFile")
    loader = iter(DataLoader((tokens, np.arange(rows)), 8, shuffle=True))
    for _ in range(20):
        batch, _ = next(loader)
        assert batch.shape == (8, width) and type(batch) is np.ndarray
    assert resident("RssAnon") - before[0] < 4 << 20
    assert resident("RssFile") - before[1] < 32 << 20


def resident(kind):
    """Return the bytes of this process that are in memory."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(kind))


# ---------------------------------------------------------------- examples with parts


Pair = collections.namedtuple("Pair", "image caption")


def test_examples_may_be_dicts_tuples_and_tuples_with_names_in_one_another():
    examples = [
        {"pair": Pair(np.full((2, 2), i, "uint8"), f"number {i}"), "weights": [i, i / 2]}
        for i in (5, 10)
    ]
    (batch,) = DataLoader(examples)
    assert type(batch["pair"]) is Pair
    assert batch["pair"].image.dtype == np.uint8 and batch["pair"].image.shape == (2, 2, 2)
    assert batch["pair"].caption.tolist() == ["number 5", "number 10"]
    assert batch["weights"].tolist() == [[5, 2.5], [10, 5]]


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [([1, 2], "int64"), ([1.5, 2], "float64"), ([True, False], "bool"), ([np.int8(1)], "int8")],
)
def test_numbers_become_arrays_of_numpys_types(numbers, dtype):
    (batch,) = DataLoader(numbers)
    assert batch.dtype == dtype and batch.tolist() == numbers


def test_torch_data_sets_and_tensors_are_read(torch):
    x, y = torch.arange(6.0).reshape(3, 2), torch.arange(3)
    for data in (torch.utils.data.TensorDataset(x, y), (x, y)):
        (batch,) = DataLoader(data)
        np.testing.assert_array_equal(batch[0], x)
        np.testing.assert_array_equal(batch[1], y)
        assert batch[0].dtype == np.float32


@pytest.mark.parametrize("kind", [list, np.array])
def test_lists_in_a_tuple_are_read_as_arrays_are(kind):
    images, labels = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], kind([7, 8, 9])
    first, last = DataLoader((images, labels), batch_size=2)
    assert [part.tolist() for part in first] == [images[:2], [7, 8]]
    assert [part.tolist() for part in last] == [images[2:], [9]]


# ---------------------------------------------------------------- what does not fit


@WORKERS
def test_examples_of_different_shapes_name_place_index_shapes_and_remedy(workers):
    examples = [{"image": np.zeros((3, 4)), "mask": (0, np.zeros(4))} for _ in range(6)]
    examples[4]["mask"] = (0, np.zeros(5))
    with pytest.raises(ShapeError) as raised:
        list(DataLoader(examples, 3, workers=workers))
    assert str(raised.value) == (
        "DataLoader cannot stack a batch: example 3['mask'][1] has shape (4,), example "
        "4['mask'][1] has (5,); use a transform or a collate function, such as one "
        "that pads, or use batch_size=1"
    )


# ---------------------------------------------------------------- waiting


@pytest.mark.parametrize("left_after", [2, 9])
def test_waiting_is_the_share_of_the_time_that_data_took(monkeypatch, left_after):
    clock = 0.0

    def takes(seconds):
        nonlocal clock
        clock += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    loader = DataLoader(range(6), 2, transform=lambda number: takes(1) or number)
    assert loader.waiting == 0
    for number, _ in enumerate(loader, start=1):
        # The loader knows nothing yet of what is done with this batch.
        assert loader.waiting == pytest.approx(2 * number / (2 * number + 3 * (number - 1)))
        takes(3)
        if number == left_after:
            break
    takes(100)
    assert loader.waiting == pytest.approx(4 / 7 if left_after == 2 else 6 / 15)
