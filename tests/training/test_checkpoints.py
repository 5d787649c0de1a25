"""What bad arguments and bad checkpoints of a training get."""

import functools
import json
import math
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
        made = loop.Training(net, adam, sets, recipe, args)
        made.resume(str(path), None)
        return made

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
    assert resumed(setting("best", ...)).best == loop.Best()
