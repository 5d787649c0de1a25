"""Errors for bad arguments and bad checkpoints of a training."""

import re
from argparse import Namespace

import loop
import numpy as np
import pytest
from small_training import PROGRAM, image_folder, run, trained

import minigraph as mg
from minigraph import optim
from minigraph.data import Synthetic


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
        ("--batch-size 2000", "has no batches: .* length is 1437, batch_size=2000"),
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
        ("--resume program", "load: program is not a safetensors file, or is damaged"),
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


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Return a function that resumes a training from a state like the checkpoint's."""
    names = {"__name__": "program"}
    exec(PROGRAM, names)
    recipe = names["RECIPES"]["synthetic"]
    args = Namespace(workers=0, seed=0, model="net", data="synthetic", device=None)
    sets = (Synthetic((3, 8, 8), 10), Synthetic((3, 8, 8), 10, 256, seed=1))
    net = names["Net"]((3, 8, 8), 10)
    adam = optim.Adam(net.parameters(), 1e-3)
    path = tmp_path_factory.mktemp("resumed") / "odd"

    def resume(state):
        mg.save(path, state)
        progress = loop.Classification(net, adam, sets, recipe, args)
        progress.resume(str(path), None)
        return progress

    return resume


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


def test_a_file_of_something_else_is_no_checkpoint(tmp_path):
    for name, state in (("weights", {"weight": np.zeros(3)}), ("foreign", {"training": 9})):
        mg.save(tmp_path / name, state)
        text = f"{name}: the file is no checkpoint of a training"
        assert text in rejected(tmp_path, "--data", "synthetic", "--resume", name)


def test_a_file_without_a_part_of_a_checkpoint_is_refused(checkpoint, resumed):
    whole = mg.load(checkpoint)
    odd = [{**whole, name: 0.5} for name in ("about", "progress", "net", "optimizer")]
    odd += [{name: part for name, part in whole.items() if name != left} for left in whole]
    odd.append({**whole, "progress": {**whole["progress"], "epoch": "one"}})
    for state in odd:
        with pytest.raises(mg.GraphError) as raised:
            resumed(state)
        assert "\n" not in str(raised.value)


def test_a_valid_checkpoint_is_resumed(checkpoint, resumed):
    whole = mg.load(checkpoint)
    progress = resumed({**whole, "progress": {**whole["progress"], "lr": 1}})
    assert (progress.lr, progress.epoch, progress.batch) == (1, 1, 10)
    assert progress.best_epoch in (1, 2) and 0 <= progress.best_score <= 1
