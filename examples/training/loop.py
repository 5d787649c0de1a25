"""The training loop of the examples: steps, epochs, tests, checkpoints.

It uses public functions only, so it is also an example of such a loop.  A launcher of MPI runs it
in several processes: each has its share of each batch, and process 0 alone prints and writes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from command_line import BEST, Recipe, say
from msgspec import Meta, Struct, to_builtins
from msgspec.json import Decoder
from tqdm.auto import tqdm

import minigraph as mg
from minigraph import nn, ops
from minigraph.data import DataLoader, Dataset
from minigraph.distributed import world
from minigraph.errors import GraphError, warn_once
from minigraph.graph import Array
from minigraph.optim import Optimizer
from minigraph.platform.records import Record, decode, encode
from minigraph.training import Evaluation, accuracy

LONG_WAIT = 0.1  # of an epoch's time, for data

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z", max_length=200)]


class Progress(Struct, forbid_unknown_fields=True):
    """The position of a training: batches of an epoch, which is done after the last of them."""

    epoch: Count = 0
    batch: Count = 0
    loss: float = 0.0  # the sum over the epoch's batches
    right: Count = 0  # how many of the epoch's images were classified right


class Setup(Record, frozen=True, rename={"batch_size": "batch size"}):
    """What a checkpoint and the run that resumes it have in common."""

    model: Line
    data: Line
    batch_size: int
    seed: int


class Best(Record, frozen=True):
    """Which epoch, counted from 1, had the highest accuracy on the test set; none is 0."""

    epoch: Count = 0
    accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.0


class Position(Record, frozen=True):
    """The text of a checkpoint, besides the arrays: the run, its progress, its learning rate."""

    about: Setup
    at: Progress
    lr: Annotated[float, Meta(ge=0)]
    best: Best = Best()
    processes: Count = 1


POSITION = Decoder(Position)


class Training:
    """A network in training: its functions, optimizer and loaders, and its progress."""

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        sets: tuple[Dataset, Dataset],
        recipe: Recipe,
        args: argparse.Namespace,
    ) -> None:
        self.net, self.optimizer, self.recipe = net, optimizer, recipe
        self.world = world()
        self.progress, self.best, self.lr = Progress(), Best(), recipe.lr
        train_set, test_set = sets
        size = recipe.batch_size
        # The last images of an epoch, fewer than a batch, are dropped: a step on a few images
        # counts as much as one on many.  Each epoch drops others.  The test set is used whole.
        load = functools.partial(
            DataLoader, batch_size=size, workers=args.workers, shard=self.world
        )
        self.train_batches = load(train_set, shuffle=True, drop_last=True, seed=args.seed)
        self.test_batches = load(test_set)
        self.shape = train_set.shape
        shape = "x".join(map(str, self.shape))
        self.about = Setup(
            model=args.model,
            data=f"{args.data.partition(':')[0]} ({len(train_set)} images to train, "
            f"{len(test_set)} to test, {shape}, {len(train_set.classes)} classes)",
            batch_size=size,
            seed=args.seed,
        )

    def describe(self) -> str:
        """Return the network, the data and the batches in words."""
        parameters = sum(p.size for p in self.net.parameters())
        batches, size = len(self.train_batches), self.recipe.batch_size
        text = f"{self.about.model} with {parameters:,} parameters, {self.about.data}\n"
        text += f"{batches} batch{'es' * (batches != 1)} of {size} an epoch"
        rest = len(self.train_batches.dataset) - batches * size
        dropped = f"{rest} image{'s' * (rest != 1)}"
        text += f"; each epoch drops {dropped}, chosen at random" * bool(rest)
        processes = self.world.size
        share = f"\n{processes} processes, each with {size // processes} images of a batch"
        return text + share * (processes > 1)

    def describe_waiting(self) -> str:
        """Return the share of the last epoch's time in which the network waited for data."""
        share = self.train_batches.waiting
        advice = "; --workers sets how many threads load it" if share > LONG_WAIT else ""
        return f"waited for data in {share:.0%} of the last epoch's time{advice}"

    def describe_best(self, path: str) -> str:
        """Return the best epoch, and the file of its weights if there is one.

        A resumed training may have the best epoch of one that wrote another file.
        """
        text = f"best test accuracy {self.best.accuracy:.2%}, after epoch {self.best.epoch}"
        return f"{text}: {path}" if path and os.path.exists(path) else text

    def compile(self, cg: Any) -> None:
        """Make the function of a training step, and the evaluation on the test set.

        A step returns the loss and the number of images that are classified right, of the batch of
        all processes.
        """
        everyone = self.world
        size = self.recipe.batch_size // everyone.size
        images = mg.input("images", (size, *self.shape))
        labels = mg.input("labels", (size,), "int64")

        scores = self.net.train()(images)
        loss = ops.cross_entropy(scores, labels)
        right = (ops.argmax(scores, axis=1) == labels).sum()
        updates = {**self.optimizer.minimize(loss, reduce=everyone), **self.net.updates()}
        outputs = [ops.all_reduce(loss, everyone, "mean"), ops.all_reduce(right, everyone)]
        self.step = cg.compile([images, labels], outputs, updates)

        self.measure = Evaluation(self.net, {"accuracy": accuracy}, cg, everyone)

    def train_epoch(self, check: Callable[[], None]) -> None:
        """Train to the end of the epoch, calling `check` after each batch."""
        at, batches, size = self.progress, len(self.train_batches), self.recipe.batch_size
        if at.batch == batches:
            return
        self.optimizer.lr = self.lr * 0.1 ** (at.epoch // self.recipe.lr_epochs)
        self.train_batches.epoch = at.epoch
        self.step.calls = at.epoch * batches + at.batch  # by which dropout counts
        title = f"epoch {at.epoch + 1}/{self.recipe.epochs}"
        done, total = at.batch * size, batches * size
        silent = self.world.rank > 0
        with tqdm(desc=title, initial=done, total=total, unit=" images", disable=silent) as bar:
            for images, labels in itertools.islice(self.train_batches, at.batch, None):
                loss, right = self.step(images, labels)
                at.batch += 1
                at.loss += float(loss)
                at.right += int(right)
                if not math.isfinite(at.loss):
                    raise GraphError(
                        f"the loss is {float(loss)} in epoch {at.epoch + 1}, batch {at.batch}; "
                        f"try a learning rate below {self.optimizer.lr:g} (--lr)"
                    )
                bar.set_postfix_str(
                    f"loss {self.loss:.4f}, accuracy {self.accuracy:.2%}, "
                    f"waiting for data {self.train_batches.waiting:.0%}",
                    refresh=False,
                )
                bar.update(size)
                check()

    @property
    def loss(self) -> float:
        """The mean loss of the epoch's batches so far."""
        return self.progress.loss / self.progress.batch

    @property
    def accuracy(self) -> float:
        """The share of the epoch's images so far that their steps classified right."""
        return self.progress.right / (self.progress.batch * self.recipe.batch_size)

    def test(self, check: Callable[[], None]) -> float:
        """Return the share of the whole test set that is classified right."""
        whole = len(self.test_batches.dataset) // self.recipe.batch_size

        def batches() -> Iterator[Any]:
            for number, batch in enumerate(self.test_batches):
                yield batch
                if number < whole:  # of the last batch some processes may have no share
                    check()

        return self.measure(batches())["accuracy"]

    def keep_best(self, tested: float, path: str) -> None:
        """Record the test accuracy of an epoch; write the weights if it is the highest so far."""
        epoch = self.progress.epoch + 1
        if not self.best.epoch or tested > self.best.accuracy:
            self.best = Best(epoch, tested)
            if path and self.world.rank == 0:
                mg.save(path, self.net)

    def average(self) -> None:
        """Set the running statistics of all processes to their means."""
        if self.world.size > 1:
            for state in self.net.buffers():
                if state.dtype.kind == "f":
                    parts = self.world.gather(state.numpy())
                    state.assign(np.mean(parts, axis=0, dtype=np.float64).astype(state.dtype))

    def save(self, path: str) -> None:
        """Write a checkpoint: the weights, the optimizer's state, the position."""
        if self.world.rank > 0:
            return
        about, at = self.about, self.progress
        text = encode(Position(about, at, self.lr, self.best, self.world.size))
        arrays = {"training": np.frombuffer(text.encode(), np.uint8)}
        for part in (self.net, self.optimizer):
            start = _prefix(part)
            arrays |= {start + name: array for name, array in part.state_dict().items()}
        mg.save(path, arrays)

    def resume(self, path: str, lr: float | None) -> None:
        """Set the state of a checkpoint, with its learning rate if `lr` is None.

        Raises GraphError if it is of another training.
        """
        arrays = self.world.broadcast(mg.load(path) if self.world.rank == 0 else None)
        saved = self._position(path, arrays)
        at = saved.at
        if at.epoch >= self.recipe.epochs:
            raise GraphError(
                f"--resume {path}: the checkpoint is of epoch {at.epoch + 1}, "
                f"--epochs is {self.recipe.epochs}; it counts from the beginning"
            )
        for part in (self.net, self.optimizer):
            start = _prefix(part)
            names = [name for name in arrays if name.startswith(start)]
            part.load_state_dict({name.removeprefix(start): arrays[name] for name in names})
        self.progress, self.best = at, saved.best
        self.lr = saved.lr if lr is None else lr
        if saved.processes != self.world.size and self.world.rank == 0:
            warn_once(
                f"--resume {path}: the checkpoint is of {saved.processes} processes, these are "
                f"{self.world.size}: batches, their order and the learning rate stay, but a "
                "BatchNorm normalises by other parts of a batch, and a dropout drops others"
            )

    def _position(self, path: str, arrays: Mapping[str, Array]) -> Position:
        """Return the position in a checkpoint; GraphError if it is of another training."""
        none = f"--resume {path}: the file is no checkpoint of a training"
        if "training" not in arrays:
            raise GraphError(none)
        try:
            saved = decode(POSITION, arrays["training"].tobytes())
        except ValueError as error:
            raise GraphError(f"{none}: its text {error}") from None
        theirs, ours = map(to_builtins, (saved.about, self.about))
        differences = [f"{n} {theirs[n]}, not {ours[n]}" for n in ours if theirs[n] != ours[n]]
        if differences:
            raise GraphError(f"--resume {path}: the checkpoint is of {'; '.join(differences)}")
        at, batches = saved.at, len(self.train_batches)
        if at.batch > batches or at.right > at.batch * self.recipe.batch_size:
            raise GraphError(
                f"{none}: its text is wrong at at: batch {at.batch} of {batches}, right {at.right}"
            )
        return saved


def begin_with(net: nn.Module, path: str) -> None:
    """Load weights into a network; a last layer for another number of classes stays as it is."""
    saved, own = mg.load(path), net.state_dict()
    last = {name: own[name] for name in [*own][-2:]}  # its weight and bias
    new = {n: v for n, v in last.items() if n in saved and saved[n].shape != v.shape}
    net.load_state_dict({**saved, **new})


def fit(
    net: nn.Module,
    optimizer: Optimizer,
    sets: tuple[Dataset, Dataset],
    recipe: Recipe,
    args: argparse.Namespace,
) -> None:
    """Train and test a network, and print the results of each epoch.

    Writes the weights of the epoch with the highest test accuracy, and checkpoints for
    `--checkpoint`.
    """
    options = {"seed": args.seed, "graph_opt_level": args.opt_level, "num_threads": args.threads}
    options["amp"] = args.amp
    cg = mg.comp_graph(args.device, {n: value for n, value in options.items() if value is not None})
    if recipe.epochs < 1:
        raise GraphError(f"--epochs is {recipe.epochs}; it takes an integer >= 1")
    if args.weights:
        begin_with(net, args.weights)
    training = Training(net, optimizer, sets, recipe, args)
    stem = args.checkpoint or args.resume or args.model
    best = f"{stem}{BEST}" if args.best is None else args.best
    for option, path in (("--checkpoint", args.checkpoint), ("--best", best)):
        if path and training.world.rank == 0:
            _check_writable(option, path)
    if args.resume:
        training.resume(args.resume, args.lr)
    say(training.describe())
    training.compile(cg)
    with held_signals() as check:
        try:
            for epoch in range(training.progress.epoch, recipe.epochs):
                if epoch > training.progress.epoch:
                    training.progress = Progress(epoch)
                training.train_epoch(check)
                training.average()
                if args.checkpoint:
                    training.save(args.checkpoint)
                tested = training.test(check)
                training.keep_best(tested, best)
                say(
                    f"epoch {epoch + 1}/{recipe.epochs}: loss {training.loss:#.6g}, "
                    f"accuracy {training.accuracy:.2%}, test accuracy {tested:.2%}"
                )
        except KeyboardInterrupt:
            at = training.progress
            advice = "nothing is kept, for lack of --checkpoint"
            if args.checkpoint:
                training.average()
                training.save(args.checkpoint)
                advice = f"--resume {args.checkpoint} goes on from there"
            if training.best.epoch:
                say(training.describe_best(best))
            say(f"stopped in epoch {at.epoch + 1} after batch {at.batch}; {advice}")
            raise
    if training.train_batches.waiting:  # 0 if the checkpoint was of the end of the last epoch
        say(training.describe_waiting())
    say(training.describe_best(best))
    say(f"loss {training.loss:#.6g}\ntest accuracy {tested:.2%}")


@contextmanager
def held_signals() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C and SIGTERM, so that neither interrupts a step.

    Yields a function that raises KeyboardInterrupt after a signal.  All processes call it, and it
    raises in all if one of them got a signal.  The second signal of a kind ends the process at
    once.
    """
    caught: list[int] = []

    def note(number: int, frame: object) -> None:
        caught.append(number)
        signal.signal(number, signal.SIG_DFL)

    def check() -> None:
        if world().any(bool(caught)):
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prefix(part: nn.Module | Optimizer) -> str:
    return "net." if isinstance(part, nn.Module) else "optimizer."


def _check_writable(option: str, path: str) -> None:
    """Raise the error of a file that cannot be written before the first epoch, not after it."""
    folder = Path(os.path.realpath(path)).parent
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise GraphError(f"{option} {path}: {folder} must exist and a file be writable there")
