"""The training loop of the examples: steps, epochs, tests, checkpoints.

It uses public functions only: copy it as the start of your own loop.  A launcher of MPI runs it in
several processes: each computes a share of each batch, and only process 0 prints and writes files.
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

LONG_WAIT = 0.1  # share of an epoch's time spent waiting for data
PROGRESS = ("epoch", "batch", "sums", "lr", "best_epoch", "best_score")  # saved in checkpoints


class Training:
    """A network in training: its functions, optimizer and loaders, and its progress.

    A subclass defines the step and the score.

    plan   has the batch size, the number of epochs and the first learning rate
    about  properties, by name, that a checkpoint and the run that resumes it must share; batch size
           and seed are added
    """

    unit = "images"
    goal = "best test accuracy {:.2%}"  # text for the absolute value of the score
    epoch = batch = 0  # the current epoch, and the number of its finished batches
    sums = np.zeros(1)  # over these batches, of the results of a step: the loss is the first
    best_epoch, best_score = 0, -math.inf  # the epoch with the highest score, counted from 1

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
        # An epoch drops its last examples if they do not fill a batch, since a step on few examples
        # would count as much as one on many.  Each epoch drops others.  Tests use all examples.
        load = functools.partial(
            DataLoader,
            batch_size=plan.batch_size,
            workers=args.workers,
            shard=self.world,
            device=args.device,
        )
        self.train_batches = load(sets[0], shuffle=True, drop_last=True, seed=args.seed)
        self.test_batches = load(sets[1])
        self.about = {**about, "batch size": str(plan.batch_size), "seed": str(args.seed)}

    def describe(self) -> str:
        """Return the network, the data and the batches in words."""
        raise NotImplementedError

    def compile(self, cg: Any) -> None:
        """Set `step`, which returns means over the batch of all processes, and `measure`."""
        raise NotImplementedError

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        raise NotImplementedError

    def status(self) -> str:
        """Return the text of the progress bar; the time spent waiting for data follows it."""
        return f"loss {self.loss:.4f}"

    def assess(self, metrics: Mapping[str, float]) -> tuple[float, str]:
        """Return the score of an epoch, the higher the better, and a text of its results."""
        raise NotImplementedError

    def finish(self, metrics: Mapping[str, float], path: str) -> None:
        """Print the results; the best weights are in the file `path`, unless it is empty."""
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
        self.step.calls = self.epoch * batches + self.batch  # seeds dropout
        title, silent = f"epoch {self.epoch + 1}/{self.epochs}", self.world.rank > 0
        initial, total = self.batch * size, batches * size
        with tqdm(
            desc=title, initial=initial, total=total, unit=f" {self.unit}", disable=silent
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
                waiting = f"waiting for data {self.train_batches.waiting:.0%}"
                bar.set_postfix_str(f"{self.status()}, {waiting}", refresh=False)
                bar.update(size)
                check()

    def test(self, check: Callable[[], None]) -> dict[str, float]:
        """Return the metrics of the whole test set."""
        full = len(self.test_batches.dataset) // self.batch_size

        def batches() -> Iterator[Any]:
            for number, batch in enumerate(self.test_batches):
                yield batch
                if number < full:  # some processes may have no share of the last, smaller batch
                    check()

        return self.measure(batches())

    def keep_best(self, score: float, path: str) -> None:
        """Record the score of an epoch; write the weights if it is the highest so far."""
        if score > self.best_score:
            self.best_epoch, self.best_score = self.epoch + 1, score
            if path and self.world.rank == 0:
                mg.save(path, self.net)

    def describe_best(self, path: str) -> str:
        """Return a text of the best epoch, with the file of its weights if the file exists.

        The run before a resumed one may have written its best weights to another file.
        """
        text = f"{self.goal.format(abs(self.best_score))}, after epoch {self.best_epoch}"
        return f"{text}: {path}" if path and os.path.exists(path) else text

    def average(self) -> None:
        """Set the running statistics of each process to their means over all processes."""
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
        """Load a checkpoint; its learning rate stays unless `lr` is given.

        Raises GraphError if the checkpoint is of another training.
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

    sums = np.zeros(2)  # the loss, and the share of correctly classified images

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
        remainder = len(self.train_batches.dataset) - batches * size
        dropped = f"{remainder} image{'s' * (remainder != 1)}"
        text += f"; each epoch drops {dropped}, chosen at random" * bool(remainder)
        processes = self.world.size
        share = f"\n{processes} processes, each with {size // processes} images of a batch"
        return text + share * (processes > 1)

    def compile(self, cg: Any) -> None:
        size = self.batch_size // self.world.size
        images = mg.input("images", (size, *self.shape))
        labels = mg.input("labels", (size,), "int64")

        scores = self.net.train()(images)
        loss = ops.cross_entropy(scores, labels)
        updates = {**self.optimizer.minimize(loss, reduce=self.world), **self.net.updates()}
        results = (loss, accuracy(scores, labels))
        outputs = [ops.all_reduce(result, self.world, "mean") for result in results]
        self.step = cg.compile([images, labels], outputs, updates)

        self.measure = Evaluation(self.net, {"accuracy": accuracy}, cg, self.world)

    def rate(self) -> float:
        return self.lr * 0.1 ** (self.epoch // self.lr_epochs)

    def status(self) -> str:
        return f"{super().status()}, accuracy {self.accuracy:.2%}"

    @property
    def accuracy(self) -> float:
        """The share of the epoch's images so far that their steps classified correctly."""
        return float(self.sums[1]) / self.batch

    def assess(self, metrics: Mapping[str, float]) -> tuple[float, str]:
        loss, accuracy = f"{self.loss:#.6g}", metrics["accuracy"]
        return accuracy, f"loss {loss}, accuracy {self.accuracy:.2%}, test accuracy {accuracy:.2%}"

    def finish(self, metrics: Mapping[str, float], path: str) -> None:
        if self.train_batches.waiting:  # 0 after resuming at the end of the last epoch
            say(self.describe_waiting())
        say(self.describe_best(path))
        say(f"loss {self.loss:#.6g}\ntest accuracy {metrics['accuracy']:.2%}")

    def describe_waiting(self) -> str:
        """Return a text of the share of the last epoch's time spent waiting for data."""
        share = self.train_batches.waiting
        advice = "; --workers sets how many threads load it" if share > LONG_WAIT else ""
        return f"waited for data in {share:.0%} of the last epoch's time{advice}"


def load_weights(net: nn.Module, path: str) -> None:
    """Load weights into a network, except those of a last layer for other classes."""
    saved, current = mg.load(path), net.state_dict()
    last = {name: current[name] for name in [*current][-2:]}  # the last layer's weight and bias
    unchanged = {n: v for n, v in last.items() if n in saved and saved[n].shape != v.shape}
    net.load_state_dict({**saved, **unchanged})


def fit(
    net: nn.Module,
    optimizer: Optimizer,
    sets: tuple[Dataset, Dataset],
    recipe: Recipe,
    args: argparse.Namespace,
) -> None:
    """Train a network to classify images."""
    if args.weights:
        load_weights(net, args.weights)
    train(Classification(net, optimizer, sets, recipe, args), args)


def train(training: Training, args: argparse.Namespace) -> None:
    """Train and test a network, and print the results of each epoch.

    Writes the weights of the epoch with the highest score, and checkpoints to `--checkpoint`.
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
    with deferred_signals() as check:
        try:
            for epoch in range(training.epoch, training.epochs):
                if epoch > training.epoch:
                    training.epoch, training.batch = epoch, 0
                    training.sums = np.zeros_like(training.sums)
                training.train_epoch(check)
                training.average()
                if args.checkpoint:
                    training.save(args.checkpoint)
                metrics = training.test(check)
                score, results = training.assess(metrics)
                training.keep_best(score, best)
                say(f"epoch {epoch + 1}/{training.epochs}: {results}")
        except KeyboardInterrupt:
            advice = "the state is lost: --checkpoint was not given"
            if args.checkpoint:
                training.average()
                training.save(args.checkpoint)
                advice = f"--resume {args.checkpoint} goes on from there"
            if training.best_epoch:
                say(training.describe_best(best))
            say(f"stopped in epoch {training.epoch + 1} after batch {training.batch}; {advice}")
            raise
    training.finish(metrics, best)


@contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C and SIGTERM, so that neither interrupts a step.

    Yields a function that raises KeyboardInterrupt after a signal.  All processes must call it:
    it raises in all of them if one got a signal.  A second signal of a kind ends the process at
    once.
    """
    signals: list[int] = []

    def record(number: int, frame: object) -> None:
        signals.append(number)
        signal.signal(number, signal.SIG_DFL)

    def check() -> None:
        if world().any(bool(signals)):
            raise KeyboardInterrupt

    handlers = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _check_writable(option: str, path: str) -> None:
    """Raise a GraphError if a file cannot be written; called before the first epoch."""
    folder = Path(os.path.realpath(path)).parent
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise GraphError(f"{option} {path}: {folder} must exist and a file be writable there")
