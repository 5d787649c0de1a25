"""The training loop: what it prints, counts, keeps and resumes."""

import os
import re
import signal
import subprocess
import sys
from argparse import Namespace

import command_line
import loop
import numpy as np
import pytest
from needs import needs_compiler
from small_training import PROGRAM, WAITED, image_folder, run, trained

import minigraph as mg
from minigraph import nn, optim
from minigraph.data import Synthetic

IMAGES = 1001  # the first of `compile`, then 10 batches of 100 in each epoch of synthetic data


def interrupted(folder, *args, at):
    """Run the program in `folder`, in a process of its own that gets a signal, and return its end.

    at  the signal's name and the image that sends it
    """
    (folder / "train.py").write_text(PROGRAM)
    env = {**os.environ, "INTERRUPT": "{}:{}".format(*at)}
    command = [sys.executable, "-W", "error", "train.py", "--data", "synthetic", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The lines and the checkpoint of a run of three epochs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return trained(folder, "--checkpoint", "whole"), mg.load(folder / "whole")


@pytest.fixture(scope="module", params=["SIGINT", "SIGTERM"])
def halted(request, tmp_path_factory):
    """The folder and the lines of a training that a signal stopped in its second epoch."""
    folder = tmp_path_factory.mktemp("halted")
    ended = interrupted(folder, "--checkpoint", "part", at=(request.param, IMAGES + 350))
    assert ended.returncode == 130 and "Traceback" not in ended.stderr
    return folder, ended.stdout.splitlines()


BEST = r"best test accuracy \d+\.\d\d%, after epoch [123](: \w+\.best\.safetensors)?"


def assert_same_end(resumed, whole):
    """A resumed training gives the same bits as one without a pause."""
    (lines, state), (whole_lines, whole_state) = resumed, whole
    assert re.fullmatch(BEST, lines[-3])
    assert lines[-4].startswith("epoch ") and lines[-4] == whole_lines[-4]
    assert lines[-2:] == whole_lines[-2:]
    for part in ("net", "optimizer", "progress"):
        assert state[part].keys() == whole_state[part].keys()
        for name, value in state[part].items():
            np.testing.assert_array_equal(value, whole_state[part][name], name)


# ---------------------------------------------------------------- what it prints


def test_each_epoch_and_at_the_end_loss_and_accuracy_are_printed(uninterrupted):
    lines, _ = uninterrupted
    number, share = r"(?:\d\.\d{5}|0\.0*[1-9]\d{5})", r"\d+\.\d\d%"
    assert lines[0].startswith("net with 5,")
    assert lines[0].endswith("synthetic (1024 images to train, 256 to test, 3x8x8, 10 classes)")
    assert lines[1] == "10 batches of 100 an epoch; each epoch drops 24 images, chosen at random"
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
def test_a_long_wait_for_data_prints_advice(share, advice):
    training, _ = small_training()
    training.train_batches.waiting = share
    assert ("--workers" in training.describe_waiting()) == advice


def test_the_bar_shows_speed_loss_accuracy_and_the_time_spent_waiting(tmp_path):
    _, _, shown = run(tmp_path, "--data", "synthetic", "--epochs", 1)
    pattern = r"images/s, loss \d\.\d+, accuracy \d+\.\d+%, waiting for data \d+%"
    assert re.search(rf"epoch 1/1: .*1000/1000 .* {pattern}", shown)


def test_another_seed_trains_another_network(tmp_path, uninterrupted):
    assert trained(tmp_path, "--seed", 1)[-2] != uninterrupted[0][-2]


# ---------------------------------------------------------------- interrupted and resumed


@needs_compiler
def test_interrupted_in_an_epoch_it_resumes_to_the_same_numbers(halted, uninterrupted):
    folder, printed = halted
    assert printed[-1] == "stopped in epoch 2 after batch 4; --resume part goes on from there"
    lines = trained(folder, "--resume", "part", "--checkpoint", "whole")
    assert_same_end((lines, mg.load(folder / "whole")), uninterrupted)


@needs_compiler
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


@needs_compiler
def test_without_a_checkpoint_an_interrupted_training_says_that_nothing_is_kept(tmp_path):
    halted = interrupted(tmp_path, at=("SIGINT", 150))
    assert halted.returncode == 130
    assert halted.stdout.endswith("batch 2; the state is lost: --checkpoint was not given\n")
    assert os.listdir(tmp_path) == ["train.py"]


def test_a_second_signal_ends_the_process_at_once():
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with loop.deferred_signals() as check:
        check()
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            check()
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


# ---------------------------------------------------------------- what it counts


def small_training(train_images=20, test_images=7, batch_size=4):
    sets = Synthetic((1, 4, 4), 3, train_images), Synthetic((1, 4, 4), 3, test_images, seed=1)
    recipe = command_line.Recipe(image_size=4, batch_size=batch_size, epochs=1, lr=0.1, lr_epochs=1)
    args = Namespace(model="net", data="synthetic", seed=0, workers=0, device=None)
    nn.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    training = loop.Classification(net, optim.SGD(net.parameters(), 0.1), sets, recipe, args)
    return training, sets


@pytest.mark.parametrize("batch_size", [1, 4, 7, 20])
def test_the_accuracy_counts_every_test_image_once(batch_size):
    training, (_, test_set) = small_training(batch_size=batch_size)
    training.compile(mg.comp_graph("reference"))
    weight, bias = training.net.state_dict().values()
    images, labels = zip(*map(test_set.__getitem__, range(len(test_set))), strict=True)
    scores = np.reshape(images, (7, 16)) @ weight.T + bias
    expected = np.mean(scores.argmax(1) == labels)
    assert training.test(lambda: None)["accuracy"] == pytest.approx(expected)


def test_the_learning_rate_falls_to_a_tenth_each_time_its_epochs_have_passed():
    training, _ = small_training()
    training.compile(mg.comp_graph("reference"))
    rates = []
    for epoch in range(3):
        training.epoch, training.batch = epoch, 0
        training.train_epoch(lambda: None)
        rates.append(training.optimizer.lr)
    np.testing.assert_allclose(rates, [0.1, 0.01, 0.001])


def test_a_loss_that_is_no_number_stops_the_training():
    training, _ = small_training()
    training.net[1].bias.assign(np.full(3, np.nan, "float32"))
    training.compile(mg.comp_graph("reference"))
    with pytest.raises(
        mg.GraphError, match=r"the loss is nan in epoch 1, batch 1; try .* below 0.1"
    ):
        training.train_epoch(lambda: None)


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
    assert weights.keys() == expected["net"].keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, expected["net"][name], name)
    assert not (tmp_path / "part.best.safetensors").exists()


def test_only_a_higher_accuracy_replaces_the_best_weights(tmp_path):
    training, _ = small_training()
    path = str(tmp_path / "best")
    kept = []
    for epoch, accuracy in enumerate((0.0, 0.5, 0.25, 0.5, 0.75)):
        training.net[1].bias.assign(np.full(3, epoch, "float32"))
        training.epoch, training.batch = epoch, 0
        training.keep_best(accuracy, path)
        kept.append((training.best_epoch, int(mg.load(path)["1.bias"][0]) + 1))
    assert kept == [(1, 1), (2, 2), (2, 2), (2, 2), (5, 5)]


@needs_compiler
@pytest.mark.parametrize("halted", ["SIGINT"], indirect=True)
def test_the_best_of_an_interrupted_training_is_named_and_goes_on(halted):
    folder, (*_, line, _) = halted
    assert re.fullmatch(BEST, line) and line.endswith("after epoch 1: part.best.safetensors")
    saved = mg.load(folder / "part")["progress"]
    assert saved["best_epoch"] == 1 and f"{saved['best_score']:.2%}" in line
    lines = trained(folder, "--resume", "part")
    assert lines[-3].endswith(": part.best.safetensors")
    elsewhere = trained(folder, "--resume", "part", "--best", "elsewhere", "--epochs", 2)
    assert (folder / "elsewhere").exists() == elsewhere[-3].endswith(": elsewhere")


# ---------------------------------------------------------------- kinds of data


def test_cifar10_can_be_trained_on(tmp_path):
    records = np.zeros((3, 1 + 3 * 32 * 32), np.uint8)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records.tofile(tmp_path / name)
    code, out, _ = run(tmp_path, "--data", "cifar10:.", "--epochs", 1)
    assert code == 0
    assert "cifar10 (15 images to train, 3 to test, 3x32x32, 10 classes)" in out


@pytest.mark.parametrize("part", ["test", "val"])
def test_a_folder_of_images_can_be_trained_on(tmp_path, part):
    image_folder(tmp_path, "train/cat/1.png", "train/dog/1.png", "train/dog/2.png")
    image_folder(tmp_path, f"{part}/cat/1.png", f"{part}/dog/1.png")
    code, out, _ = run(tmp_path, "--data", "folder:.", "--epochs", 1)
    assert code == 0
    assert "folder (3 images to train, 2 to test, 3x8x8, 2 classes)" in out
    assert "1 batch of 2 an epoch; each epoch drops 1 image, chosen at random" in out
