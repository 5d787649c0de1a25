"""The training loop: what it prints, what it resumes, and what bad input gets.

`PROGRAM` is the least that uses it; its data can send a signal to the process that reads them, so
that a training is interrupted at the very same image in each run of the tests.
"""

import contextlib
import functools
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from unittest import mock

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, optim, training
from minigraph.data import Synthetic

PROGRAM = '''
"""Train a small network."""

import os
import signal

from minigraph import nn, optim, training
from minigraph.data import Dataset
from minigraph.training import Recipe

RECIPES = {
    "synthetic": Recipe(image_size=8, batch_size=100, epochs=3, lr=1e-3, lr_epochs=2),
    "digits": Recipe(image_size=8, batch_size=100, epochs=2, lr=1e-3, lr_epochs=2),
    "folder": Recipe(image_size=8, batch_size=2, epochs=2, lr=1e-3, lr_epochs=2),
    "cifar10": Recipe(image_size=32, batch_size=2, epochs=2, lr=1e-3, lr_epochs=2),
}


class Signalling(Dataset):
    """A set that, from one image on, sends the process that reads it a signal."""

    def __init__(self, images):
        self.images, self.shape, self.classes = images, images.shape, images.classes
        name, _, self.left = os.environ.get("INTERRUPT", "SIGINT:-1").partition(":")
        self.signal, self.left = signal.Signals[name], int(self.left)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signal)
        return self.images[index]


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(8 * shape[1] * shape[2], classes),
        )

    def forward(self, x):
        return self.layers(x)


def main():
    parser = training.parser(__doc__, RECIPES)
    parser.add_argument("--model", default="net")
    parser.set_defaults(workers=0, threads=1)
    args = parser.parse_args()
    recipe = training.settle(args, RECIPES)
    train_set, test_set = training.data_sets(args.data, recipe.image_size)
    nn.manual_seed(args.seed)
    net = Net(train_set.shape, len(train_set.classes))
    optimizer = optim.Adam(net.parameters(), recipe.lr)
    training.fit(net, optimizer, (Signalling(train_set), test_set), recipe, args)


if __name__ == "__main__":
    training.run(main)
'''

IMAGES = 1001  # the first of `compile`, then 10 batches of 100 in each epoch of synthetic data


def interrupted(folder, *args, at):
    """Run the program in `folder`, in a process of its own that gets a signal, and return its end.

    at  the signal's name and the image that sends it
    """
    (folder / "train.py").write_text(PROGRAM)
    env = {**os.environ, "INTERRUPT": "{}:{}".format(*at)}
    command = [sys.executable, "-W", "error", "train.py", "--data", "synthetic", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def run(folder, *args):
    """Run the program in `folder`, in this process; return exit code, output and errors."""
    names = {"__name__": "program"}
    exec(PROGRAM, names)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["train.py", *map(str, args)]),
        pytest.raises(SystemExit) as ended,
    ):
        training.run(names["main"])
    return ended.value.code, out.getvalue(), err.getvalue()


WAITED = r"waited for data in \d+% of the last epoch's time(; --workers sets .*)?"


def trained(folder, *args):
    """Return the lines that a run on synthetic data prints, but for the one that always differs."""
    code, out, err = run(folder, "--data", "synthetic", *args)
    assert code == 0, err
    return [line for line in out.splitlines() if not re.fullmatch(WAITED, line)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The lines and the checkpoint of a run of three epochs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return trained(folder, "--checkpoint", "whole"), mg.load(folder / "whole")


BEST = r"best test accuracy \d+\.\d\d%, after epoch [123](: \w+\.best\.safetensors)?"


def assert_same_end(resumed, whole):
    """What was trained after a pause is to the last bit what was trained without one."""
    (lines, state), (whole_lines, whole_state) = resumed, whole
    assert re.fullmatch(BEST, lines[-3])
    assert lines[-4].startswith("epoch ") and lines[-4] == whole_lines[-4]
    assert lines[-2:] == whole_lines[-2:]
    assert state.keys() == whole_state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(array, whole_state[name], name)


# ---------------------------------------------------------------- what it prints


def test_each_epoch_and_at_the_end_loss_and_accuracy_are_printed(uninterrupted):
    lines, _ = uninterrupted
    number, share = r"(?:\d\.\d{5}|0\.0*[1-9]\d{5})", r"\d+\.\d\d%"
    assert lines[0].startswith("net with 5,")
    assert lines[0].endswith("synthetic (1024 images to train, 256 to test, 3x8x8, 10 classes)")
    assert lines[1] == "10 batches of 100 an epoch; 24 images, others each epoch, fill no batch"
    for epoch, line in enumerate(lines[2:5], start=1):
        pattern = rf"epoch {epoch}/3: loss {number}, accuracy {share}, test accuracy {share}"
        assert re.fullmatch(pattern, line)
    assert re.fullmatch(BEST, lines[5])
    assert re.fullmatch(f"loss {number}", lines[6])
    assert re.fullmatch(f"test accuracy {share}", lines[7])
    assert lines[4].endswith(f"test accuracy {lines[7].split()[-1]}")
    assert len(lines) == 8


def test_at_the_end_the_share_of_time_spent_waiting_for_data_is_printed(tmp_path):
    _, out, _ = run(tmp_path, "--data", "synthetic", "--epochs", 1)
    assert re.fullmatch(WAITED, out.splitlines()[-4])
    # In the second run the epoch is done: nothing waits.
    run(tmp_path, "--data", "synthetic", "--epochs", 1, "--checkpoint", "part")
    _, out, _ = run(tmp_path, "--data", "synthetic", "--epochs", 1, "--resume", "part")
    assert "waited" not in out


@pytest.mark.parametrize(("share", "advice"), [(0.1, False), (0.11, True)])
def test_who_waits_much_for_data_is_told_what_may_help(share, advice):
    made, _ = small_training()
    made.train_batches.waiting = share
    assert ("--workers" in made.describe_waiting()) == advice


def test_the_bar_shows_speed_loss_accuracy_and_the_time_spent_waiting(tmp_path):
    _, _, shown = run(tmp_path, "--data", "synthetic", "--epochs", 1)
    pattern = r"images/s, loss \d\.\d+, accuracy \d+\.\d+%, waiting for data \d+%"
    assert re.search(rf"epoch 1/1: .*1000/1000 .* {pattern}", shown)


def test_another_seed_trains_another_network(tmp_path, uninterrupted):
    assert trained(tmp_path, "--seed", 1)[-2] != uninterrupted[0][-2]


# ---------------------------------------------------------------- interrupted and resumed


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_interrupted_in_an_epoch_it_resumes_to_the_same_numbers(tmp_path, name, uninterrupted):
    halted = interrupted(tmp_path, "--checkpoint", "part", at=(name, IMAGES + 350))
    assert halted.returncode == 130
    stopped = "stopped in epoch 2 after batch 4; --resume part goes on from there"
    assert halted.stdout.splitlines()[-1] == stopped
    assert "Traceback" not in halted.stderr
    lines = trained(tmp_path, "--resume", "part", "--checkpoint", "whole")
    assert_same_end((lines, mg.load(tmp_path / "whole")), uninterrupted)


def test_killed_after_an_epoch_it_resumes_to_the_same_numbers(tmp_path, uninterrupted):
    killed = interrupted(tmp_path, "--checkpoint", "part", at=("SIGKILL", IMAGES + 350))
    assert killed.returncode == -signal.SIGKILL
    lines = trained(tmp_path, "--resume", "part", "--checkpoint", "whole")
    assert lines[2:] == uninterrupted[0][2:]  # the epoch that was done is tested again
    assert_same_end((lines, mg.load(tmp_path / "whole")), uninterrupted)


def test_more_epochs_go_on_from_a_finished_training(tmp_path, uninterrupted):
    first = trained(tmp_path, "--epochs", 1, "--checkpoint", "part")
    again = trained(tmp_path, "--epochs", 1, "--resume", "part", "--checkpoint", "part")
    assert again[-2:] == first[-2:]
    lines = trained(tmp_path, "--resume", "part", "--checkpoint", "whole")
    assert_same_end((lines, mg.load(tmp_path / "whole")), uninterrupted)


def test_the_learning_rate_is_the_checkpoints_unless_another_is_given(tmp_path):
    whole = trained(tmp_path, "--epochs", 2, "--lr", 0.01)
    trained(tmp_path, "--epochs", 1, "--lr", 0.01, "--checkpoint", "part")
    assert trained(tmp_path, "--epochs", 2, "--resume", "part")[-2:] == whole[-2:]
    slower = trained(tmp_path, "--epochs", 2, "--resume", "part", "--lr", 0.001)
    assert slower[-2:] != whole[-2:]


def test_without_a_checkpoint_an_interrupted_training_says_that_nothing_is_kept(tmp_path):
    halted = interrupted(tmp_path, at=("SIGINT", 150))
    assert halted.returncode == 130
    assert halted.stdout.endswith("batch 2; nothing is kept, for lack of --checkpoint\n")
    assert os.listdir(tmp_path) == ["train.py"]


def test_a_second_signal_ends_the_process_at_once():
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with training.held_signals() as check:
        check()
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            check()
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


# ---------------------------------------------------------------- what it counts


def small_training(train_images=20, test_images=7, batch_size=4):
    sets = Synthetic((1, 4, 4), 3, train_images), Synthetic((1, 4, 4), 3, test_images, seed=1)
    recipe = training.Recipe(image_size=4, batch_size=batch_size, epochs=1, lr=0.1, lr_epochs=1)
    args = Namespace(model="net", data="synthetic", seed=0, workers=0)
    nn.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    made = training.Training(net, optim.SGD(net.parameters(), 0.1), sets, recipe, args)
    return made, sets


@pytest.mark.parametrize("batch_size", [1, 4, 7, 20])
def test_the_accuracy_counts_every_test_image_once(batch_size):
    made, (_, test_set) = small_training(batch_size=batch_size)
    made.compile(mg.comp_graph())
    weight, bias = made.net.state_dict().values()
    images, labels = zip(*map(test_set.__getitem__, range(len(test_set))), strict=True)
    scores = np.reshape(images, (7, 16)) @ weight.T + bias
    assert made.test(lambda: None) == pytest.approx(np.mean(scores.argmax(1) == labels))


def test_the_learning_rate_falls_to_a_tenth_each_time_its_epochs_have_passed():
    made, _ = small_training()
    made.compile(mg.comp_graph())
    rates = []
    for epoch in range(3):
        made.progress = training.Progress(epoch)
        made.train_epoch(lambda: None)
        rates.append(made.optimizer.lr)
    np.testing.assert_allclose(rates, [0.1, 0.01, 0.001])


def test_a_loss_that_is_no_number_stops_the_training():
    made, _ = small_training()
    made.net[1].bias.assign(np.full(3, np.nan, "float32"))
    made.compile(mg.comp_graph())
    with pytest.raises(
        mg.GraphError, match=r"the loss is nan in epoch 1, batch 1; try .* below 0.1"
    ):
        made.train_epoch(lambda: None)


# ---------------------------------------------------------------- the best weights


def test_the_best_weights_are_kept_where_the_last_lines_say(tmp_path):
    lines = trained(tmp_path, "--epochs", 1)
    assert os.listdir(tmp_path) == ["net.best.safetensors"]
    assert lines[-3].endswith("after epoch 1: net.best.safetensors")
    whole = trained(tmp_path, "--checkpoint", "whole")
    file = re.fullmatch(BEST, whole[-3])[1].removeprefix(": ")
    assert file == "whole.best.safetensors"
    number = int(whole[-3].partition("epoch ")[2][0])
    rates = [float(line.split()[-1].rstrip("%")) for line in whole[2:5]]
    assert rates.index(max(rates)) + 1 == number
    trained(tmp_path, "--epochs", number, "--checkpoint", "part", "--best", "")
    expected, weights = mg.load(tmp_path / "part"), mg.load(tmp_path / file)
    assert weights.keys() == {n.removeprefix("net.") for n in expected if n.startswith("net.")}
    for name, array in weights.items():
        np.testing.assert_array_equal(array, expected[f"net.{name}"], name)
    assert not (tmp_path / "part.best.safetensors").exists()


def test_only_a_higher_accuracy_replaces_the_best_weights(tmp_path):
    made, _ = small_training()
    path = str(tmp_path / "best")
    kept = []
    for epoch, accuracy in enumerate((0.0, 0.5, 0.25, 0.5, 0.75)):
        made.net[1].bias.assign(np.full(3, epoch, "float32"))
        made.progress = training.Progress(epoch)
        made.keep_best(accuracy, path)
        kept.append((made.best.epoch, int(mg.load(path)["1.bias"][0]) + 1))
    assert kept == [(1, 1), (2, 2), (2, 2), (2, 2), (5, 5)]


def test_the_best_of_an_interrupted_training_is_named_and_goes_on(tmp_path):
    halted = interrupted(tmp_path, "--checkpoint", "part", at=("SIGINT", IMAGES + 350))
    line = halted.stdout.splitlines()[-2]
    assert re.fullmatch(BEST, line) and line.endswith("after epoch 1: part.best.safetensors")
    saved = json.loads(mg.load(tmp_path / "part")["training"].tobytes())["best"]
    assert saved["epoch"] == 1 and f"{saved['accuracy']:.2%}" in line
    lines = trained(tmp_path, "--resume", "part")
    assert lines[-3].endswith(": part.best.safetensors")
    elsewhere = trained(tmp_path, "--resume", "part", "--best", "elsewhere", "--epochs", 2)
    assert (tmp_path / "elsewhere").exists() == elsewhere[-3].endswith(": elsewhere")


# ---------------------------------------------------------------- kinds of data


def test_digits_can_be_trained_on(tmp_path):
    pytest.importorskip("sklearn")
    code, out, err = run(tmp_path, "--epochs", 1)
    assert (code, err.count("error")) == (0, 0)
    assert "digits (1437 images to train, 360 to test, 1x8x8, 10 classes)" in out


def test_cifar10_can_be_trained_on(tmp_path):
    records = np.zeros((3, 1 + 3 * 32 * 32), np.uint8)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records.tofile(tmp_path / name)
    code, out, _ = run(tmp_path, "--data", "cifar10:.", "--epochs", 1)
    assert code == 0
    assert "cifar10 (15 images to train, 3 to test, 3x32x32, 10 classes)" in out


def image_folder(root, *paths):
    image = pytest.importorskip("PIL.Image").new("RGB", (8, 8))
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / path)


@pytest.mark.parametrize("part", ["test", "val"])
def test_a_folder_of_images_can_be_trained_on(tmp_path, part):
    image_folder(tmp_path, "train/cat/1.png", "train/dog/1.png", "train/dog/2.png")
    image_folder(tmp_path, f"{part}/cat/1.png", f"{part}/dog/1.png")
    code, out, _ = run(tmp_path, "--data", "folder:.", "--epochs", 1)
    assert code == 0
    assert "folder (3 images to train, 2 to test, 3x8x8, 2 classes)" in out
    assert "1 batches of 2 an epoch; 1 images, others each epoch, fill no batch" in out


# ---------------------------------------------------------------- bad input


def rejected(folder, *args):
    """Return the error of a run in `folder`, which is one line."""
    code, _, err = run(folder, *args)
    assert code == 2
    assert re.fullmatch("error: .*\n", err)
    return err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("--data mnist", "'mnist' is none of digits, cifar10:DIR, folder:DIR, synthetic"),
        ("--data folder:", "'folder:' is none of"),
        ("--data digits:here", "'digits:here' is none of"),
        ("--data folder:absent", "folder:absent takes folders train and test .* found nothing"),
        ("--data folder:data/train", "takes folders train and test .* found cat, dog"),
        ("--data folder:data", "found no image in data/train/cat; it takes .jpg, .jpeg, .png"),
        ("--data cifar10:absent", r"cannot read absent/data_batch_1.bin \(No such file"),
        ("--data cifar10:absent --image-size 64", "CIFAR-10 have 32 pixels a side, not 64"),
        ("--image-size 4", "Digits: size is 4; it takes an integer from 8"),
        ("--batch-size 0", "batch_size is 0; it takes an integer >= 1"),
        ("--batch-size 2000", "no batch to give: .* length is 1437, batch_size=2000"),
        ("--epochs 0", "--epochs is 0; it takes an integer >= 1"),
        ("--epochs many", "argument --epochs: invalid int value: 'many'; --help lists"),
        ("--lr -1", r"lr is -1.0; it takes a number in \[0, inf\)"),
        ("--seed -1", "seed is -1; it takes an integer >= 0"),
        ("--opt-level 4", "graph_opt_level does not take 4; allowed: -3, -2, -1, 0, 1, 2, 3"),
        ("--device tpu", "there is no device 'tpu'"),
        ("--threads 0", "num_threads does not take 0"),
        ("--workers -1", "workers is -1; it takes an integer >= 0"),
        ("--optlevel 2", "unrecognized arguments: --optlevel 2"),
        ("--checkpoint absent/file", "--checkpoint absent/file: .*/absent must exist"),
        ("--checkpoint data", "--checkpoint data: "),
        ("--best absent/file", "--best absent/file: .*/absent must exist"),
        ("--resume absent", r"load: absent cannot be read \(No such file or directory\)"),
        ("--resume program", "load: program is no safetensors file, or damaged"),
    ],
)
def test_bad_arguments_get_one_line_and_exit_code_2(tmp_path, args, text):
    for path in ("train/cat", "train/dog", "test"):
        (tmp_path / "data" / path).mkdir(parents=True)
    (tmp_path / "program").write_text(PROGRAM)
    assert re.search(text, rejected(tmp_path, *args.split()))


def test_a_folder_whose_parts_have_other_classes_is_refused(tmp_path):
    image_folder(tmp_path, "train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "val/wolf/1.png")
    text = rejected(tmp_path, "--data", "folder:.")
    assert "only one of train and val has dog, wolf" in text


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of two epochs."""
    folder = tmp_path_factory.mktemp("checkpoint")
    trained(folder, "--epochs", 2, "--checkpoint", "part")
    return folder / "part"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("--data synthetic --model other", "the checkpoint is of model net, not other$"),
        ("--data synthetic --seed 3 --batch-size 50", "of batch size 100, not 50; seed 0, not 3$"),
        ("--data digits", r"of data synthetic \(1024 images.*\), not digits \(1437 images.*\)$"),
        ("--data synthetic --epochs 1", "is of epoch 2, --epochs is 1; it counts from"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, checkpoint, args, text):
    message = rejected(tmp_path, *args.split(), "--resume", checkpoint)
    assert re.search(text, message.rstrip()), message


def test_a_checkpoint_that_is_damaged_or_something_else_is_refused(checkpoint, tmp_path):
    data = bytearray(checkpoint.read_bytes())
    data[-5] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    mg.save(tmp_path / "weights", {"weight": np.zeros(3)})
    mg.save(tmp_path / "foreign", {"training": np.arange(9)})
    for name, text in (
        ("damaged", "damaged is damaged: its checksum"),
        ("cut", "cut is no safetensors file, or damaged"),
        ("weights", "weights: the file is no checkpoint of a training"),
        ("foreign", "foreign: the file is no checkpoint of a training"),
    ):
        assert text in rejected(tmp_path, "--data", "synthetic", "--resume", name)


@pytest.fixture(scope="module")
def resumed(checkpoint, tmp_path_factory):
    """What resumes a training from the checkpoint, whose text was changed before."""
    names = {"__name__": "program"}
    exec(PROGRAM, names)
    recipe = names["RECIPES"]["synthetic"]
    args = Namespace(workers=0, seed=0, model="net", data="synthetic")
    sets = (Synthetic((3, 8, 8), 10), Synthetic((3, 8, 8), 10, 256, seed=1))
    net = names["Net"]((3, 8, 8), 10)
    adam = optim.Adam(net.parameters(), 1e-3)
    arrays = mg.load(checkpoint)
    path = tmp_path_factory.mktemp("resumed") / "odd"

    def resume(change):
        text = change(arrays["training"].tobytes())
        mg.save(path, {**arrays, "training": np.frombuffer(text, np.uint8)})
        made = training.Training(net, adam, sets, recipe, args)
        made.resume(str(path), None)
        return made

    return resume


def setting(where, value):
    """Return what puts a value into the text of a checkpoint, or takes it out if it is ..."""

    def change(text):
        whole = json.loads(text)
        *parts, last = where.split(".")
        part = functools.reduce(dict.__getitem__, parts, whole)
        part[last] = value
        if value is ...:
            del part[last]
        return json.dumps(whole).encode()

    return change


ODD = {
    "about": [None, 1, "net", [], {}, {"model": "net"}, ...],
    "about.model": [None, 1, ["net"], "a\nb", "\x1b[2J", "n" * 201, ...],
    "about.data": [None, 1, {}, ...],
    "about.batch size": [None, "100", 100.5, True, ...],
    "about.seed": [None, "0", 0.5, False, ...],
    "about.more": [1],
    "at": [None, 1, [], [1, 2, 0.5, 3], "at"],
    "at.epoch": [None, -1, 0.5, "1", True, 10**30, 10**400, [1]],
    "at.batch": [None, -1, 0.5, "1", True, 11, 10**30, {}],
    "at.loss": [None, "0.5", True, float("nan"), float("inf"), [0.5]],
    "at.right": [None, -1, 0.5, "1", 10**30, 1001],
    "at.more": [1],
    "best": [None, 1, [], {"at": 1}],
    "best.epoch": [None, -1, 0.5, "1"],
    "best.accuracy": [None, -0.1, 1.1, "1", float("nan")],
    "lr": [None, -1e-3, "1e-3", True, float("nan"), float("inf"), [1e-3], ...],
    "more": [1],
}


@pytest.mark.parametrize(("where", "value"), [(w, v) for w in ODD for v in ODD[w]])
def test_an_odd_part_of_a_checkpoint_is_one_error_that_names_it(resumed, where, value):
    with pytest.raises(mg.GraphError) as raised:
        resumed(setting(where, value))
    message = str(raised.value)
    assert message.startswith("--resume ")
    assert "\n" not in message
    no_number = isinstance(value, float) and not math.isfinite(value)
    assert where.split(".")[-1] in message or (no_number and "no JSON" in message)


TEXTS = {
    "nested": b"[" * 100_000,
    "nested in a part": b'{"about": ' * 100_000,
    "nested in a part that is unknown": b'{"more": ' + b"[" * 100_000,
    "no text": b"\xff\xfe",
    "nothing": b"",
    "a number": b"7",
    "a list": b"[]",
    "a surrogate": b'{"about": {"model": "\\ud800"}}',
    "a huge number": b'{"lr": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_that_is_none_of_a_checkpoint_is_one_error(resumed, text):
    with pytest.raises(mg.GraphError, match=r"^--resume .*: the file is no checkpoint") as raised:
        resumed(lambda _: text)
    assert "\n" not in str(raised.value)


def test_what_is_right_is_resumed(resumed):
    made = resumed(setting("lr", 1))
    assert (made.lr, made.progress.epoch, made.progress.batch) == (1.0, 1, 10)
    assert made.best.epoch == 1


def test_a_checkpoint_from_before_the_best_was_noted_is_resumed(resumed):
    assert resumed(setting("best", ...)).best == training.Best()
