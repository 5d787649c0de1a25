"""The loader: batches, their order, and errors."""

import signal
import threading
import time

import numpy as np
import pytest
from data_sets import Noisy, same, threads

from minigraph.data import DataLoader
from minigraph.distributed.world import World


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


def numbered(length):
    return Listed([(np.full((1, 2, 2), i, np.float32), i) for i in range(length)])


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
    assert all(sorted(indices) == list(range(50)) for indices in orders)
    assert len(set(map(tuple, orders))) == 4
    assert order(1, 1) == orders[3]


def shards(size, make):
    """Return one loader for each process; `make` gets the world of each."""
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
        for array, share in zip(batch, zip(*shares, strict=True), strict=True):
            np.testing.assert_array_equal(np.concatenate(share), array)
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
def test_each_iterator_begins_an_epoch_also_if_the_one_before_was_left_early(workers):
    whole = DataLoader(Noisy(), 6, shuffle=True)
    firsts = [images for _ in range(6) for images, _ in [*whole][:1]]
    loader = DataLoader(Noisy(), 6, shuffle=True, workers=workers)
    batches = []
    for images, _ in loader:
        assert loader.epoch == 0
        batches.append(images)
        break
    batches.append(next(iter(loader))[0])
    for (images, _), _ in zip(loader, range(1), strict=False):
        assert loader.epoch == 2
        batches.append(images)
    first, second = iter(loader), iter(loader)  # at the same time
    batches += [next(first)[0], next(second)[0]]
    assert (len(list(second)), loader.epoch, len(list(first)), loader.epoch) == (3, 5, 3, 5)
    batches.append(next(iter(loader))[0])
    loader.epoch = 5  # again
    batches.append(next(iter(loader))[0])
    np.testing.assert_array_equal(batches, [*firsts, firsts[5]])


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
    batches = []
    with pytest.raises(RuntimeError, match="seven"):
        for _, labels in DataLoader(Listed(items), 3, workers=workers, prefetch=4):
            batches.append(labels.tolist())
    assert batches == [[0, 1, 2], [3, 4, 5]]
    assert threads() == []


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
