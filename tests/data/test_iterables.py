"""The loader with iterables: their order, their end, their errors."""

import time

import pytest
from data_sets import WORKERS, Countdown, values

from minigraph.data import DataLoader
from minigraph.distributed.world import World
from minigraph.errors import GraphError


@WORKERS
@pytest.mark.parametrize("make", [Countdown, lambda count: lambda: iter(range(count))])
def test_an_iterable_gives_batches_to_its_end_in_each_epoch(workers, make):
    loader = DataLoader(make(7), 3, workers=workers)
    for epoch in range(2):
        assert loader.epoch == epoch
        assert values(loader) == [[0, 1, 2], [3, 4, 5], [6]]
    assert values(DataLoader(make(7), 3, drop_last=True, workers=workers)) == [[0, 1, 2], [3, 4, 5]]
    assert values(DataLoader(make(6), 3, workers=workers)) == [[0, 1, 2], [3, 4, 5]]
    assert values(DataLoader(make(0), 3, workers=workers)) == []


@WORKERS
def test_processes_share_the_batches_of_an_iterable(workers):
    world = World()
    world.rank, world.size = 1, 2
    loader = DataLoader(Countdown(11), 4, workers=workers, shard=world)
    assert values(loader) == [[2, 3], [6, 7], [9, 10]]
    assert values(DataLoader(Countdown(11), 4, drop_last=True, shard=world)) == [[2, 3], [6, 7]]


@WORKERS
def test_a_function_that_makes_an_iterable_gets_random_numbers_of_seed_and_epoch(workers):
    def numbers(rng):
        yield from rng.random(5)

    one, same, other = (DataLoader(numbers, 2, workers=workers, seed=s) for s in (1, 1, 2))
    first = values(one)
    assert first == values(same) != values(other)
    assert values(one) != first
    one.epoch = 0
    assert values(one) == first


@WORKERS
def test_threads_draw_from_an_iterable_one_after_the_other_and_keep_its_order(workers):
    inside = []

    def numbers():
        for number in range(40):
            inside.append(number)
            time.sleep(0.0005)
            assert inside.pop() == number
            yield number

    def slow(number):
        time.sleep(0.001 * (number % 3))
        return number

    loader = DataLoader(numbers, 3, workers=workers, prefetch=4, transform=slow)
    assert [number for batch in loader for number in batch] == list(range(40))


@WORKERS
def test_an_endless_iterable_can_be_left_and_is_read_no_further_than_is_prefetched(workers):
    drawn = []

    def numbers():
        for number in range(10**9):
            drawn.append(number)
            yield number

    for batch in DataLoader(numbers, 4, workers=workers, prefetch=2):
        if batch[0] >= 8:
            break
    assert len(drawn) <= 4 * (3 + 2)


@WORKERS
def test_an_error_in_an_iterable_arrives_in_place_of_its_batch(workers):
    def numbers():
        yield from range(5)
        raise RuntimeError("five")

    batches = []
    with pytest.raises(RuntimeError, match="five"):
        for batch in DataLoader(numbers, 2, workers=workers):
            batches.append(batch.tolist())
    assert batches == [[0, 1], [2, 3]]


@WORKERS
def test_a_generator_that_was_begun_is_an_error_that_says_what_to_give(workers):
    loader = DataLoader((number for number in range(3)), workers=workers)
    assert values(loader) == [[0, 1, 2]]
    with pytest.raises(GraphError, match="generator a second time; pass the function that"):
        list(loader)
