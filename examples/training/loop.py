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
from typing import Any

import numpy as np
from command_line import BEST, Recipe, say
from tqdm.auto import tqdm

import minigraph as mg
from minigraph import nn, ops
from minigraph.data import DataLoader, Dataset
from minigraph.distributed import world
from minigraph.errors import GraphError, warn_once
from minigraph.optim import Optimizer
from minigraph.training import Evaluation, accuracy

LONG_WAIT = 0.1  # of an epoch's time, for data
PROGRESS = ("epoch", "batch", "sums", "lr", "best_epoch", "best_score")  # that checkpoints hold


class Training:
    """A network in training: its functions, optimizer and loaders, and its progress.

    A subclass says what a step is, and how good the network is.

    plan   has the size of a batch, the number of epochs and the learning rate to begin with
    about  what a checkpoint and the run that resumes it have in common, besides batches and seed
    """

    unit = "images"
    goal = "best test accuracy {:.2%}"  # the size of the score, in words
    epoch = batch = 0  # the epoch that runs, and its batches that are done
    sums = np.zeros(1)  # over these, of what a step returns: first the loss
    best_epoch, best_score = 0, -math.inf  # of the epoch, counted from 1, with the highest score

    step: Any
    measure: Evaluation

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        sets: tuple[Any, Any],
        plan: Any,
        args: argparse.Namespace,
        about: Mapping[str, str],
    ) -> None:
        self.net, self.optimizer, self.world = net, optimizer, world()
        self.batch_size, self.epochs, self.lr = plan.batch_size, plan.epochs, plan.lr
        # The last examples of an epoch, fewer than a batch, are dropped: a step on a few of them
        # counts as much as one on many.  Each epoch drops others.  The test set is used whole.
        load = functools.partial(
            DataLoader, batch_size=plan.batch_size, workers=args.workers, shard=self.world
        )
        self.train_batches = load(sets[0], shuffle=True, drop_last=True, seed=args.seed)
        self.test_batches = load(sets[1])
        self.about = {**about, "batch size": str(plan.batch_size), "seed": str(args.seed)}

    def describe(self) -> str:
        """Return the network, the data and the batches in words."""
        raise NotImplementedError

    def compile(self, cg: Any) -> None:
        """Make `step`, which returns means over the batch of all processes, and `measure`."""
        raise NotImplementedError

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        raise NotImplementedError

    def status(self) -> str:
        """Return what the progress bar shows besides the time that is spent waiting."""
        return f"loss {self.loss:.4f}"

    def tested(self, found: Mapping[str, float]) -> tuple[float, str]:
        """Return the score of an epoch, the higher the better, and its results in words."""
        raise NotImplementedError

    def finish(self, found: Mapping[str, float], path: str) -> None:
        """Print what has come of it.  The best weights are in the file `path`, if it has a name."""
        raise NotImplementedError

    @property
    def loss(self) -> float:
        """The mean loss of the epoch's batches so far."""
        return float(self.sums[0]) / self.batch

    def train_epoch(self, check: Callable[[], None]) -> None:
        """Train to the end of the epoch, calling `check` after each batch."""
        batches, size = len(self.train_batches), self.batch_size
        if self.batch == batches:
            return
        self.train_batches.epoch = self.epoch
        self.step.calls = self.epoch * batches + self.batch  # by which dropout counts
        title, silent = f"epoch {self.epoch + 1}/{self.epochs}", self.world.rank > 0
        done, total = self.batch * size, batches * size
        with tqdm(
            desc=title, initial=done, total=total, unit=f" {self.unit}", disable=silent
        ) as bar:
            for parts in itertools.islice(self.train_batches, self.batch, None):
                self.optimizer.lr = self.rate()
                results = np.array([*map(float, self.step(*parts))])
                self.sums, self.batch = self.sums + results, self.batch + 1
                if not math.isfinite(self.loss):
                    raise GraphError(
                        f"the loss is {results[0]} in epoch {self.epoch + 1}, batch {self.batch}; "
                        f"try a learning rate below {self.optimizer.lr:g} (--lr)"
                    )
                waited = f"waiting for data {self.train_batches.waiting:.0%}"
                bar.set_postfix_str(f"{self.status()}, {waited}", refresh=False)
                bar.update(size)
                check()

    def test(self, check: Callable[[], None]) -> dict[str, float]:
        """Return the metrics of the whole test set."""
        whole = len(self.test_batches.dataset) // self.batch_size

        def batches() -> Iterator[Any]:
            for number, batch in enumerate(self.test_batches):
                yield batch
                if number < whole:  # of the last batch some processes may have no share
                    check()

        return self.measure(batches())

    def keep_best(self, score: float, path: str) -> None:
        """Record the score of an epoch; write the weights if it is the highest so far."""
        if score > self.best_score:
            self.best_epoch, self.best_score = self.epoch + 1, score
            if path and self.world.rank == 0:
                mg.save(path, self.net)

    def describe_best(self, path: str) -> str:
        """Return the best epoch, and the file of its weights if there is one.

        A resumed training may have the best epoch of one that wrote another file.
        """
        text = f"{self.goal.format(abs(self.best_score))}, after epoch {self.best_epoch}"
        return f"{text}: {path}" if path and os.path.exists(path) else text

    def average(self) -> None:
        """Set the running statistics of all processes to their means."""
        if self.world.size > 1:
            for state in self.net.buffers():
                if state.dtype.kind == "f":
                    parts = self.world.gather(state.numpy())
                    state.assign(np.mean(parts, axis=0, dtype=np.float64).astype(state.dtype))

    def save(self, path: str) -> None:
        """Write a checkpoint: the weights, the optimizer's state, the progress."""
        if self.world.rank == 0:
            progress = {name: getattr(self, name) for name in PROGRESS}
            progress["processes"] = self.world.size
            parts = {"net": self.net, "optimizer": self.optimizer}
            mg.save(path, {"about": self.about, "progress": progress, **parts})

    def resume(self, path: str, lr: float | None) -> None:
        """Set the state of a checkpoint, with its learning rate if `lr` is None.

        Raises GraphError if it is of another training.
        """
        saved = self.world.broadcast(mg.load(path) if self.world.rank == 0 else None)
        try:
            about, progress = saved["about"], saved["progress"]
            net, optimizer = saved["net"], saved["optimizer"]
            differences = [
                f"{name} {about[name]}, not {value}"
                for name, value in self.about.items()
                if about[name] != value
            ]
            state = {name: progress[name].tolist() for name in PROGRESS}
            processes = int(progress["processes"])
        except (KeyError, IndexError, TypeError, AttributeError):
            raise GraphError(f"--resume {path}: the file is no checkpoint of a training") from None
        if differences:
            raise GraphError(f"--resume {path}: the checkpoint is of {'; '.join(differences)}")
        if state["epoch"] >= self.epochs:
            raise GraphError(
                f"--resume {path}: the checkpoint is of epoch {state['epoch'] + 1}, "
                f"--epochs is {self.epochs}; it counts from the beginning"
            )
        self.net.load_state_dict(net)
        self.optimizer.load_state_dict(optimizer)
        vars(self).update(state, sums=progress["sums"])
        self.lr = self.lr if lr is None else lr
        if processes != self.world.size and self.world.rank == 0:
            warn_once(
                f"--resume {path}: the checkpoint is of {processes} processes, these are "
                f"{self.world.size}: batches, their order and the learning rate stay, but a "
                "BatchNorm normalises by other parts of a batch, and a dropout drops others"
            )


class Classification(Training):
    """A network in training that classifies images."""

    sums = np.zeros(2)  # the loss, and the share of the images that are classified right

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        sets: tuple[Dataset, Dataset],
        recipe: Recipe,
        args: argparse.Namespace,
    ) -> None:
        train_set, test_set = sets
        self.shape, self.lr_epochs = train_set.shape, recipe.lr_epochs
        data = (
            f"{args.data.partition(':')[0]} ({len(train_set)} images to train, {len(test_set)} to "
            f"test, {'x'.join(map(str, self.shape))}, {len(train_set.classes)} classes)"
        )
        about = {"model": args.model, "data": data}
        super().__init__(net, optimizer, sets, recipe, args, about)

    def describe(self) -> str:
        parameters = sum(p.size for p in self.net.parameters())
        batches, size = len(self.train_batches), self.batch_size
        text = f"{self.about['model']} with {parameters:,} parameters, {self.about['data']}\n"
        text += f"{batches} batch{'es' * (batches != 1)} of {size} an epoch"
        rest = len(self.train_batches.dataset) - batches * size
        dropped = f"{rest} image{'s' * (rest != 1)}"
        text += f"; each epoch drops {dropped}, chosen at random" * bool(rest)
        processes = self.world.size
        share = f"\n{processes} processes, each with {size // processes} images of a batch"
        return text + share * (processes > 1)

    def compile(self, cg: Any) -> None:
        everyone = self.world
        size = self.batch_size // everyone.size
        images = mg.input("images", (size, *self.shape))
        labels = mg.input("labels", (size,), "int64")

        scores = self.net.train()(images)
        loss = ops.cross_entropy(scores, labels)
        updates = {**self.optimizer.minimize(loss, reduce=everyone), **self.net.updates()}
        results = (loss, accuracy(scores, labels))
        outputs = [ops.all_reduce(result, everyone, "mean") for result in results]
        self.step = cg.compile([images, labels], outputs, updates)

        self.measure = Evaluation(self.net, {"accuracy": accuracy}, cg, everyone)

    def rate(self) -> float:
        return self.lr * 0.1 ** (self.epoch // self.lr_epochs)

    def status(self) -> str:
        return f"{super().status()}, accuracy {self.accuracy:.2%}"

    @property
    def accuracy(self) -> float:
        """The share of the epoch's images so far that their steps classified right."""
        return float(self.sums[1]) / self.batch

    def tested(self, found: Mapping[str, float]) -> tuple[float, str]:
        loss, tested = f"{self.loss:#.6g}", found["accuracy"]
        return tested, f"loss {loss}, accuracy {self.accuracy:.2%}, test accuracy {tested:.2%}"

    def finish(self, found: Mapping[str, float], path: str) -> None:
        if self.train_batches.waiting:  # 0 if the checkpoint was of the end of the last epoch
            say(self.describe_waiting())
        say(self.describe_best(path))
        say(f"loss {self.loss:#.6g}\ntest accuracy {found['accuracy']:.2%}")

    def describe_waiting(self) -> str:
        """Return the share of the last epoch's time in which the network waited for data."""
        share = self.train_batches.waiting
        advice = "; --workers sets how many threads load it" if share > LONG_WAIT else ""
        return f"waited for data in {share:.0%} of the last epoch's time{advice}"


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
    """Train a network to classify images."""
    if args.weights:
        begin_with(net, args.weights)
    train(Classification(net, optimizer, sets, recipe, args), args)


def train(training: Training, args: argparse.Namespace) -> None:
    """Train and test a network, and print the results of each epoch.

    Writes the weights of the epoch with the highest score, and checkpoints for `--checkpoint`.
    """
    options = {"seed": args.seed, "graph_opt_level": args.opt_level, "num_threads": args.threads}
    options["amp"] = args.amp
    cg = mg.comp_graph(args.device, {n: value for n, value in options.items() if value is not None})
    if training.epochs < 1:
        raise GraphError(f"--epochs is {training.epochs}; it takes an integer >= 1")
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
            for epoch in range(training.epoch, training.epochs):
                if epoch > training.epoch:
                    training.epoch, training.batch = epoch, 0
                    training.sums = np.zeros_like(training.sums)
                training.train_epoch(check)
                training.average()
                if args.checkpoint:
                    training.save(args.checkpoint)
                found = training.test(check)
                score, results = training.tested(found)
                training.keep_best(score, best)
                say(f"epoch {epoch + 1}/{training.epochs}: {results}")
        except KeyboardInterrupt:
            advice = "nothing is kept, for lack of --checkpoint"
            if args.checkpoint:
                training.average()
                training.save(args.checkpoint)
                advice = f"--resume {args.checkpoint} goes on from there"
            if training.best_epoch:
                say(training.describe_best(best))
            say(f"stopped in epoch {training.epoch + 1} after batch {training.batch}; {advice}")
            raise
    training.finish(found, best)


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


def _check_writable(option: str, path: str) -> None:
    """Raise the error of a file that cannot be written before the first epoch, not after it."""
    folder = Path(os.path.realpath(path)).parent
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise GraphError(f"{option} {path}: {folder} must exist and a file be writable there")
