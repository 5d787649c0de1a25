"""Batches of a data set, in an order that only the seed and the epoch decide.

Threads, not processes: a fork after OpenMP has started is unsafe, and decoding and NumPy's copies
let other threads run.
"""

from __future__ import annotations

import operator
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, Protocol, cast

import numpy as np

from minigraph import forks
from minigraph.arguments import Count, Kind, Seed, Size, at_least, checked
from minigraph.data.dataset import Dataset, Images, InMemory, Labels
from minigraph.errors import DTypeError, GraphError, ShapeError


class Examples(Protocol):
    """What a loader reads: a `Dataset`, or anything else that gives (array, int) by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


def _examples(value: Any) -> Examples:
    if isinstance(value, type) or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        raise TypeError
    len(value)
    return cast(Examples, value)


EXAMPLES = Kind("a data set, or a sequence of (image, label)", _examples)
EPOCH = at_least(0)


class DataLoader:
    """Iterate over `(images float32 [n, c, h, w], labels int64 [n])`, new contiguous arrays.

    `workers` threads prepare `prefetch` batches ahead of the one in use; with none, a batch is
    prepared when asked for.  An error in a thread is raised where its batch would have come.
    Threads end with the iteration, also if it is left early.

    `epoch` chooses the shuffling and the augmentation.  An iteration that was run to its end adds
    one; one that was left early does not, and is repeated by the next.  Hence a training resumed
    with `loader.epoch = k` sees what an uninterrupted one would have seen from epoch k on::

        for epoch in range(k, epochs):
            loader.epoch = epoch
            for images, labels in loader:
                ...
    """

    @checked
    def __init__(
        self,
        dataset: Annotated[Examples, EXAMPLES],
        batch_size: Count = 32,
        shuffle: bool = False,
        drop_last: bool = False,
        workers: Size = 0,
        prefetch: Size = 2,
        seed: Seed = 0,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.workers = workers
        self.prefetch = prefetch
        self.seed = seed
        self.epoch = 0
        if not len(self):
            raise GraphError(
                f"DataLoader has no batch to give: the data set's length is {len(dataset)}, "
                f"batch_size={batch_size}, drop_last={drop_last}"
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Images, Labels]]:
        return self._run(EPOCH.check("DataLoader: epoch", self.epoch))

    def _run(self, epoch: int) -> Iterator[tuple[Images, Labels]]:
        yield from self._threaded(epoch) if self.workers else self._inline(epoch)
        self.epoch = epoch + 1

    def _batches(self, epoch: int) -> Iterator[_Batch]:
        """Iterate over the epoch's batches, still to be filled."""
        order = np.arange(len(self.dataset))
        if self.shuffle:
            order = _generator(self.seed, epoch).permutation(order)
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            indexes = order[start : start + self.batch_size].tolist()
            yield _Batch(self.dataset, indexes, self.seed, epoch)

    def _inline(self, epoch: int) -> Iterator[tuple[Images, Labels]]:
        for batch in self._batches(epoch):
            batch.fill(0, len(batch.indexes), threading.Event())
            yield batch.arrays()

    def _threaded(self, epoch: int) -> Iterator[tuple[Images, Labels]]:
        left = threading.Event()
        pending: deque[tuple[_Batch, list[Future[None]]]] = deque()
        threads = ThreadPoolExecutor(self.workers, thread_name_prefix="minigraph-data")
        process = os.getpid()
        try:
            for batch in self._batches(epoch):
                parts = batch.parts(self.workers)
                pending.append((batch, [threads.submit(batch.fill, *p, left) for p in parts]))
                if len(pending) > self.prefetch:
                    yield _finished(*pending.popleft())
                    _check_process(process)
            while pending:
                yield _finished(*pending.popleft())
                _check_process(process)
        finally:
            if os.getpid() == process:
                left.set()
                threads.shutdown(cancel_futures=True)


class _Batch:
    """A batch in the making, filled at once or in parts by several threads."""

    def __init__(self, dataset: Examples, indexes: list[int], seed: int, epoch: int) -> None:
        self.dataset = dataset
        self.indexes = indexes
        self.seed = seed
        self.epoch = epoch
        self.images: Images | None = None
        self.labels = np.empty(len(indexes), np.int64)
        self.shapes: list[tuple[int, ...]] = [()] * len(indexes)
        self.lock = forks.lock()

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return ranges of positions, at most `count`, to be filled side by side."""
        n = len(self.indexes)
        if isinstance(self.dataset, InMemory):
            return [(0, n)]
        count = min(count, n)
        return [(n * k // count, n * (k + 1) // count) for k in range(count)]

    def fill(self, start: int, stop: int, left: threading.Event) -> None:
        """Prepare the examples at positions `start` to `stop`, until `left` is set."""
        if isinstance(self.dataset, InMemory):
            rngs = (_generator(self.seed, self.epoch, index) for index in self.indexes)
            self.images, self.labels = self.dataset.batch(self.indexes, rngs)
            self.shapes = [self.images.shape[1:]]
            return
        for position in range(start, stop):
            if left.is_set():
                return
            self._put(position, *self._example(self.indexes[position]))

    def arrays(self) -> tuple[Images, Labels]:
        """Return the filled batch; a ShapeError if its images cannot be stacked."""
        for index, shape in zip(self.indexes, self.shapes, strict=False):
            if shape != self.shapes[0]:
                raise ShapeError(
                    f"DataLoader cannot stack a batch: example {self.indexes[0]} has shape "
                    f"{self.shapes[0]}, example {index} has {shape}; give them one shape, "
                    "or use batch_size=1"
                )
        assert self.images is not None
        return self.images, self.labels

    def _example(self, index: int) -> tuple[Any, int]:
        if isinstance(self.dataset, Dataset):
            example = self.dataset.example(index, _generator(self.seed, self.epoch, index))
        else:
            example = self.dataset[index]
        try:
            image, label = example
            return np.asarray(image), operator.index(label)
        except (TypeError, ValueError) as error:
            raise GraphError(
                f"DataLoader found no (image, integer label) at index {index} of "
                f"{type(self.dataset).__name__} ({error})"
            ) from error

    def _put(self, position: int, image: Any, label: int) -> None:
        if image.dtype.kind not in "buif":
            raise DTypeError(
                f"DataLoader found an image of {image.dtype} at index {self.indexes[position]}; "
                "it takes numbers that fit float32"
            )
        with self.lock:
            if self.images is None:
                self.images = np.empty((len(self.indexes), *image.shape), np.float32)
        self.shapes[position] = image.shape
        self.labels[position] = label
        if image.shape == self.images.shape[1:]:
            self.images[position] = image


def _check_process(process: int) -> None:
    """Raise GraphError in a forked child, which has not the threads that prepare the batches."""
    if os.getpid() != process:
        raise GraphError(
            "DataLoader: a forked child cannot go on with an epoch that its parent has begun; "
            "iterate over the loader anew"
        )


def _finished(batch: _Batch, parts: list[Future[None]]) -> tuple[Images, Labels]:
    """Wait for the batch's parts and return its arrays, or raise what went wrong first in it."""
    for part in parts:
        part.result()
    return batch.arrays()


def _generator(seed: int, *key: int) -> np.random.Generator:
    """Return the stream of `key`: (epoch,) for the order, (epoch, index) for an example.

    A spawn key, because plain entropy ignores zeros at its end: [seed, 0] and [seed, 0, 0] are
    the same stream.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
