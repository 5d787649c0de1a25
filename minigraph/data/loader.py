"""Batches of a data set, in an order that depends only on the seed and the epoch.

Threads prepare them, not processes: a fork after OpenMP has started is unsafe, and decoders and
NumPy's copies release the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np

from minigraph import options
from minigraph.arguments import Count, Kind, Seed, Size, at_least, checked, instance_of
from minigraph.compiler.trace import DEVICE
from minigraph.data.collation import collate_examples, rebuild
from minigraph.data.dataset import Dataset, InMemory
from minigraph.data.source import SOURCE, Columns, Stream, optional_generator
from minigraph.devices.factory import open_backend
from minigraph.distributed.world import Processes, World
from minigraph.errors import GraphError
from minigraph.graph import DTYPES, Array
from minigraph.platform import forks

S = TypeVar("S", list[int], range)
EPOCH = at_least(0)
FUNCTION = "a function of {0}, or of {0} and a generator of random numbers"


UNARY = functools.partial(optional_generator, count=1)
Transform = Annotated[Callable[..., Any], Kind(FUNCTION.format("an example"), UNARY)]
BatchTransform = Annotated[Callable[..., Any], Kind(FUNCTION.format("a batch"), UNARY)]
Collate = Annotated[Callable[..., Any], instance_of(Callable, "a function of a list of examples")]


class NoLength(GraphError, TypeError):
    """The error for the length of an iterable: a TypeError, as `list` and `tqdm` expect."""


@checked
@dataclass(eq=False, repr=False)
class DataLoader:
    """Iterate over batches: new contiguous arrays, in tuples or dicts like those of the examples.

    dataset          a `Dataset`, or another object with a length and examples by index; an array,
                     a tuple or a dict of arrays or lists whose first axis counts examples (memory
                     maps are read batch by batch); an iterable of examples, or a function that
                     returns one for each epoch
    transform        a function of an example that returns its replacement
    batch_transform  a function of a batch that returns its replacement
    collate          a function of a list of examples that returns a batch; by default
                     `default_collate`, which stacks arrays and keeps their dtypes
    workers          threads that prepare batches, in parts if examples are read one by one
    prefetch         batches that the workers prepare ahead of the one in use
    shard            `mg.distributed.world()`: each process gets its share of each batch
    device           name of a device, as in `comp_graph`: the arrays of a batch are copied to its
                     memory while the batch before is in use.  A CPU uses NumPy's arrays

    Without workers, `next` prepares a batch, or the thread that copies batches to a device.  An
    error in a thread is raised in place of its batch.  The threads end with the iteration, even if
    it is left early.

    The order, and the random numbers of a transform, depend only on the seed and `epoch`.  A
    transform draws them from its second parameter, a `np.random.Generator`, and a function that
    returns an iterable from its only one.  Each `iter(loader)` begins a new epoch, even if the
    previous one was left early, as by `next(iter(loader))` or `zip(small, large)`.  `epoch` is the
    number of the running epoch, else of the next one, and can be set.  A training that is resumed
    with `loader.epoch = k` gets the batches of an uninterrupted one from epoch k on::

        for epoch in range(k, epochs):
            loader.epoch = epoch
            for images, labels in loader:
                ...

    With `shard`, `batch_size` counts the examples of all processes, and is a multiple of their
    number: each batch is divided into equal parts, by rank.  So the batches and their order do not
    depend on the number of processes, and a training can be resumed with another number.  The
    shares of an incomplete last batch differ by at most one example; if it has fewer examples than
    there are processes, some get no batch, so a step that waits for all processes needs
    `drop_last=True`.  Each process reads the whole of an iterable.

    `waiting` is the share of the last iteration's time, from 0 to 1, that it waited for data.

    >>> from minigraph.data import DataLoader
    >>> tokens, targets = np.arange(12).reshape(4, 3), np.array([0.5, 1.5, 2.5, 3.5], "float32")
    >>> for batch in DataLoader({"tokens": tokens, "target": targets}, batch_size=3):
    ...     print(batch["tokens"].shape, batch["target"])
    (3, 3) [0.5 1.5 2.5]
    (1, 3) [3.5]
    """

    dataset: Annotated[Any, SOURCE]
    batch_size: Count = 32
    shuffle: bool = False
    drop_last: bool = False
    workers: Size = 0
    prefetch: Size = 2
    seed: Seed = 0
    transform: Transform | None = None
    batch_transform: BatchTransform | None = None
    collate: Collate | None = None
    shard: Processes | None = None
    device: Annotated[str, DEVICE] | None = None

    def __post_init__(self) -> None:
        self.shard = self._world = self.shard or World()
        self._epoch, self._started = 0, False
        self.waiting = 0.0
        processes = self._world.size
        if self.batch_size % processes:
            raise GraphError(
                f"DataLoader: batch_size is {self.batch_size}, which {processes} processes cannot "
                f"share equally; use a multiple of {processes}"
            )
        if isinstance(self.dataset, Stream):
            if self.shuffle:
                raise GraphError(
                    "DataLoader: shuffle=True takes a data set with a length, not an iterable, "
                    "whose order is fixed"
                )
        elif len(self.dataset) < (self.batch_size if self.drop_last else 1):
            raise GraphError(
                f"DataLoader has no batches: the data set's length is {len(self.dataset)}, "
                f"batch_size={self.batch_size}, drop_last={self.drop_last}"
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch; `NoLength` if the data set is an iterable."""
        if isinstance(self.dataset, Stream):
            raise NoLength("DataLoader: an iterable has no length, so the loader has none")
        full, remainder = divmod(len(self.dataset), self.batch_size)
        return full + (len(self._share(range(remainder))) > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        if self._started:
            self.epoch += 1
        self._started = True
        return self._run(self.epoch)

    @property
    def epoch(self) -> int:
        """The number of the epoch that runs, or else of the next one."""
        return self._epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._epoch = EPOCH.check("DataLoader: epoch", value)
        self._started = False

    def _run(self, epoch: int) -> Iterator[Any]:
        start, process = time.perf_counter(), os.getpid()
        waiting = 0.0
        batches = self._threaded(epoch) if self.workers else self._inline(epoch)
        upload = _uploader(self.device) if self.device else None
        if upload:
            batches = _ahead(batches, upload)
        with contextlib.closing(batches):
            while True:
                begin = time.perf_counter()
                batch = next(batches, None)
                end = time.perf_counter()
                waiting += end - begin
                self.waiting = waiting / (end - start)
                if batch is None:
                    break
                yield batch.value
                if (self.workers or upload) and os.getpid() != process:
                    raise GraphError(
                        "DataLoader: a forked child cannot continue an epoch of its parent; "
                        "iterate over the loader again"
                    )
        if self._started and self.epoch == epoch:  # no other epoch began meanwhile
            self.epoch = epoch + 1

    def _inline(self, epoch: int) -> Generator[_Batch]:
        stop = threading.Event()
        for batch in self._batches(epoch, 1, stop):
            batch.fill(0, stop)
            yield batch

    def _threaded(self, epoch: int) -> Generator[_Batch]:
        stop = threading.Event()
        stream = isinstance(self.dataset, Stream)
        count = 1 if stream or self._reads_whole_batches else self.workers
        batches = self._batches(epoch, count, stop)
        pending: deque[tuple[Future[_Batch | None], list[Future[None]]]] = deque()

        def fill(future: Future[_Batch | None], part: int) -> None:
            batch = future.result()
            if batch is not None:
                batch.fill(part, stop)

        # A single thread reads the examples of an iterable, in order.
        with _threads(1) as reader, _threads(self.workers) as fillers:
            try:
                while True:
                    future = reader.submit(next, batches, None)
                    parts = [fillers.submit(fill, future, i) for i in range(count)]
                    pending.append((future, parts))
                    if len(pending) > self.prefetch:
                        future, parts = pending.popleft()
                        batch = future.result()
                        for part in parts:
                            part.result()  # raises the thread's error
                        if batch is None:
                            return
                        yield batch
            finally:
                stop.set()

    def _batches(self, epoch: int, parts: int, stop: threading.Event) -> Iterator[_Batch]:
        """Iterate over the epoch's batches before they are filled."""
        for number, (source, indexes) in enumerate(self._sources(epoch, stop)):
            if share := self._share(indexes):
                yield _Batch(self, source, epoch, number, share, parts)

    def _sources(self, epoch: int, stop: threading.Event) -> Iterator[tuple[Any, list[int]]]:
        """Iterate over the source of each batch's examples, and their indexes in it."""
        if isinstance(self.dataset, Stream):
            examples = self.dataset.iterate(_generator(self.seed, epoch))
            numbered = enumerate(itertools.takewhile(lambda _: not stop.is_set(), examples))
            minimum = self.batch_size if self.drop_last else 1
            while len(chunk := dict(itertools.islice(numbered, self.batch_size))) >= minimum:
                yield chunk, [*chunk]
            return
        order = np.arange(len(self.dataset))
        if self.shuffle:
            order = _generator(self.seed, epoch).permutation(order)
        stop_index = len(order) - len(order) % self.batch_size if self.drop_last else len(order)
        for start in range(0, stop_index, self.batch_size):
            yield self.dataset, order[start : start + self.batch_size].tolist()

    def _share(self, batch: S) -> S:
        """Return this process's part of a batch."""
        rank, size, count = self._world.rank, self._world.size, len(batch)
        return batch[count * rank // size : count * (rank + 1) // size]

    @property
    def _reads_whole_batches(self) -> bool:
        each = self.transform or self.collate
        return isinstance(self.dataset, InMemory | Columns) and not each


@contextlib.contextmanager
def _threads(count: int, source: Generator[_Batch] | None = None) -> Iterator[ThreadPoolExecutor]:
    """Run the block with threads, which end with it; then close the generator that they run.

    A forked child lacks the threads, and finds the generator as they left it: perhaps running.
    """
    process = os.getpid()
    threads = ThreadPoolExecutor(count, thread_name_prefix="minigraph-data")
    try:
        yield threads
    finally:
        if os.getpid() == process:
            threads.shutdown(cancel_futures=True)
            if source:
                source.close()


def _ahead(batches: Generator[_Batch], upload: Callable[[Any], Any]) -> Generator[_Batch]:
    """Copy each batch to a device in a thread, while the caller uses the batch before."""

    def uploaded() -> _Batch | None:
        batch = next(batches, None)
        if batch is not None:
            batch.value = upload(batch.value)
        return batch

    with _threads(1, batches) as thread:
        future = thread.submit(uploaded)
        while (batch := future.result()) is not None:
            future = thread.submit(uploaded)
            yield batch


def _uploader(device: str) -> Callable[[Any], Any] | None:
    """Return a function that copies the arrays of a batch to a device.

    It returns tuples, lists and dicts like those of the batch.  Texts and objects stay as they are.
    None if the device uses the host's memory.
    """
    upload = open_backend(device, options.resolve({})).uploader()
    return upload and (lambda batch: _uploaded(batch, upload))


def _uploaded(batch: Any, upload: Callable[[Array], Array]) -> Any:
    match batch:
        case np.ndarray() if batch.dtype in DTYPES:
            return upload(batch)
        case list():
            return [_uploaded(part, upload) for part in batch]
        case Mapping() | tuple():
            items = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
            return rebuild(batch, {key: _uploaded(part, upload) for key, part in items})
    return batch


@dataclass(eq=False)
class _Batch:
    """A batch that threads fill in parts; the thread of the last part assembles it."""

    loader: DataLoader
    source: Any
    epoch: int
    number: int
    indexes: Sequence[int]
    parts: int
    value: Any = None

    def __post_init__(self) -> None:
        self.examples: list[Any] = [None] * len(self.indexes)
        self.unfilled = self.parts
        self.lock = forks.lock()

    def fill(self, part: int, stop: threading.Event) -> None:
        """Prepare the examples of a part, until `stop` is set; after the last part, the batch."""
        if not self.loader._reads_whole_batches:
            count = len(self.indexes)
            for position in range(count * part // self.parts, count * (part + 1) // self.parts):
                if stop.is_set():
                    return
                index = self.indexes[position]
                try:
                    self.examples[position] = self._example(index)
                except Exception as error:
                    error.add_note(f"This was example {index} of a DataLoader, epoch {self.epoch}.")
                    raise
        with self.lock:
            self.unfilled -= 1
            is_filled = not self.unfilled
        if is_filled:
            self.value = self._assemble()

    def _example(self, index: int) -> Any:
        source, transform = self.source, self.loader.transform
        if not transform and not isinstance(source, Dataset):
            return source[index]
        rng = _generator(self.loader.seed, self.epoch, index)
        example = source.example(index, rng) if isinstance(source, Dataset) else source[index]
        return transform(example, rng) if transform else example

    def _assemble(self) -> Any:
        loader, examples = self.loader, self.examples
        if not loader._reads_whole_batches:
            self.examples = []
            collate = loader.collate
            batch = collate(examples) if collate else collate_examples(examples, self.indexes)
        else:
            rngs = (_generator(loader.seed, self.epoch, index) for index in self.indexes)
            batch = self.source.batch(self.indexes, rngs)
        if loader.batch_transform is None:
            return batch
        key = (loader.seed, self.epoch, self.number, loader._world.rank)
        return loader.batch_transform(batch, _generator(*key))


def _generator(seed: int, *key: int) -> np.random.Generator:
    """Return the generator of a key.

    (epoch,)               for the order or the iterable of an epoch
    (epoch, index)         for an example
    (epoch, number, rank)  for a process's share of a batch

    The key is a spawn key, because entropy ignores trailing zeros: [seed, 0] and [seed, 0, 0] give
    the same numbers.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
