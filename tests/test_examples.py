"""The examples: the networks are torchvision's, and the command lines do what they promise."""

import functools
import importlib
import re
import runpy
import sys

import numpy as np
import pytest
from example_networks import (
    ALEXNET,
    EXAMPLES,
    MLP,
    RESNET,
    check_losses,
    load,
    torch_alexnet,
    torch_resnet18,
)
from long_runs import long
from loop import load_weights
from new_process import python

import minigraph as mg
from minigraph import nn
from minigraph.data import DataLoader, Digits, Synthetic, read_image
from minigraph.training import evaluate

# ---------------------------------------------------------------- the networks


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: MLP.MLP(784, 10), 101_770),
        (lambda: MLP.MLP(6, 2, hidden=(5, 4)), 6 * 5 + 5 + 5 * 4 + 4 + 4 * 2 + 2),
        (lambda: MLP.MLP(6, 2, hidden=()), 6 * 2 + 2),
        (RESNET.resnet34, 21_797_672),
        (RESNET.resnet101, 44_549_160),
    ],
)
def test_the_numbers_of_parameters_are_those_of_the_papers(make, count):
    """Those of the networks that are also the benchmark's: `tests/bench/test_bench_networks.py`."""
    assert sum(p.size for p in make().parameters()) == count


def test_alexnet_maps_images_of_63_pixels_and_more_to_scores():
    net = ALEXNET.AlexNet(classes=7, channels=1)
    for side in (63, 64, 224):
        assert net(mg.input("x", (2, 1, side, side))).shape == (2, 7)
    with pytest.raises(mg.ShapeError, match=r"need 63 pixels a side or more, not \(62, 64\)"):
        net(mg.input("x", (2, 1, 62, 64)))


@pytest.mark.parametrize("make", [RESNET.resnet18, RESNET.resnet50])
@pytest.mark.parametrize(("small_stem", "sides"), [(False, [64, 224]), (True, [8, 32])])
def test_resnets_map_images_to_scores(make, small_stem, sides):
    net = make(classes=7, small_stem=small_stem, channels=1)
    for side in sides:
        assert net(mg.input("x", (2, 1, side, side))).shape == (2, 7)


def test_the_3x3_convolution_of_a_bottleneck_has_the_stride():
    net = RESNET.resnet50()
    for layer in (net.layer2, net.layer3, net.layer4):
        assert [layer[0].conv1.stride, layer[0].conv2.stride] == [(1, 1), (2, 2)]
        assert layer[1].conv2.stride == (1, 1)


def test_residual_weights_start_as_in_he_et_al():
    net = RESNET.resnet18()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            outputs, _, height, width = module.weight.shape
            expected = np.sqrt(2 / (outputs * height * width))
            np.testing.assert_allclose(module.weight.numpy().std(), expected, rtol=0.03)
        elif isinstance(module, nn.BatchNorm2d):
            assert module.weight.numpy().min() == 1
            assert module.bias.numpy().max() == 0


def test_images_for_alexnet_are_doubled_pixel_by_pixel(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "alexnet")
    monkeypatch.delitem(sys.modules, "model", raising=False)
    images = Synthetic((2, 3, 4), 5)
    doubled = load("alexnet", "train").Doubled(images)
    del sys.modules["model"]
    assert (len(doubled), doubled.shape, doubled.classes) == (1024, (2, 6, 8), images.classes)
    for (big, label), (small, same) in (
        (doubled[7], images[7]),
        (doubled.example(7, None), images.example(7, None)),
    ):
        assert label == same
        np.testing.assert_array_equal(big, np.kron(small, np.ones((1, 2, 2), "float32")))


# At larger rates PyTorch drifts as far from itself, in another memory layout.
@pytest.mark.parametrize(
    ("make", "make_torch", "lr"),
    [
        long(lambda n: ALEXNET.AlexNet(n, dropout=0.0), torch_alexnet, 3e-5),
        (RESNET.resnet18, torch_resnet18, 1e-5),
    ],
    ids=["alexnet", "resnet18"],
)
def test_from_the_same_weights_the_losses_follow_pytorchs(make, make_torch, lr):
    check_losses(make, make_torch, lr)


# ---------------------------------------------------------------- the command lines


def output(example, *args):
    """Return the output of an example that succeeds.

    On one thread: on a busy machine several wait longer than they compute.  Only the perceptron,
    the quickest, is tuned as a user's would be.
    """
    tuned = {} if example == "mlp" else {"MINIGRAPH_OPTIONS": "autotune=off"}
    arguments = EXAMPLES / example / "train.py", "--threads", 1, "--best", "", *args
    return python(*arguments, **tuned)[0].splitlines()


@pytest.fixture
def ended(monkeypatch, capsys):
    """A function: run an example in this process to its end; return status, output and errors."""

    def run(example, *args):
        monkeypatch.syspath_prepend(EXAMPLES / example)
        monkeypatch.setattr(sys, "argv", ["train.py", "--best", "", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(EXAMPLES / example / "train.py"), run_name="__main__")
        for name in ("model", "text"):  # that each example has, or may have
            sys.modules.pop(name, None)
        return caught.value.code, *capsys.readouterr()

    return run


def accuracy(lines):
    """Return the test accuracy of the last line, in percent."""
    assert re.fullmatch(r"loss \d+\.\d+", lines[-2])
    match = re.fullmatch(r"test accuracy (\d+\.\d+)%", lines[-1])
    assert match, lines[-1]
    return float(match[1])


@pytest.mark.long
def test_alexnet_trains_on_synthetic_images():
    lines = output("alexnet", "--data", "synthetic", "--epochs", 1, "--batch-size", 256)
    assert lines[0].startswith("alexnet with 57,044,810 parameters, synthetic (1024 images")
    assert 0 <= accuracy(lines) <= 100


SMALL = ["--data", "synthetic", "--image-size", 8, "--batch-size", 128]


def test_a_resnet_of_half_the_blocks_trains_on_synthetic_images(ended, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "autotune=off")
    monkeypatch.syspath_prepend(EXAMPLES / "resnet")
    model = importlib.import_module("model")
    smaller = functools.partial(model.ResNet, model.BasicBlock, (1, 1, 1, 1))
    monkeypatch.setattr(model, "resnet18", smaller)
    status, printed, _ = ended("resnet", *SMALL, "--epochs", 1, "--threads", 1)
    assert status == 0 and 0 <= accuracy(printed.splitlines()) <= 100


def test_the_gpt_learns_a_text_and_writes_on(tmp_path):
    """In which each character follows from the one before; test_training.py interrupts."""
    (tmp_path / "text").write_text("abcdefgh" * 500)
    small = ["--data", tmp_path / "text", "--best", tmp_path / "best", "--batch-size", 4]
    lines = output("gpt", *small, "--epochs", 3, "--sample", 9)
    assert lines[0] == "GPT with 826,112 parameters, 3,584 characters an epoch"
    losses = [float(re.search(r" loss (\S+),", line)[1]) for line in lines[1:4]]
    assert losses[0] > losses[1] > losses[2]
    sample = "\n".join(lines[4:-4])
    assert len(sample) == 9 and accuracy(lines) > 90
    assert mg.load(tmp_path / "best")["tokens.weight"].shape == (96, 128)


def test_the_perceptron_learns_the_digits(tmp_path):
    pytest.importorskip("sklearn")
    best = tmp_path / "best"
    lines = output("mlp", "--epochs", 4, "--hidden", 64, "--best", best)
    assert accuracy(lines) > 90 and lines[-3].endswith(f": {best}")
    net = MLP.MLP(64, 10, (64,))
    net.load_state_dict(mg.load(best))
    metrics = evaluate(net, DataLoader(Digits(train=False), 32))
    assert f"best test accuracy {metrics['accuracy']:.2%}, " in lines[-3]


@pytest.mark.long
def test_resnet18_learns_the_digits():
    assert accuracy(output("resnet", "--epochs", 3)) > 90


@pytest.mark.parametrize(
    ("example", "args"),
    [
        ("alexnet", ["--data", "synthetic:3"]),
        ("resnet", ["--model", "resnet19"]),
        ("gpt", ["--data", "no/such/text"]),
        ("mlp", ["--hidden", "-1"]),
    ],
)
def test_bad_arguments_get_one_line_and_exit_code_2(ended, example, args):
    status, _, errors = ended(example, *args)
    assert status == 2
    assert re.fullmatch(f"error: .*{args[-1]}.*\n", errors), errors


OPTIONS = "data opt-level device batch-size epochs lr seed checkpoint resume best"


@pytest.mark.parametrize("example", ["alexnet", "gpt", "mlp", "resnet"])
def test_help_names_every_option(ended, example):
    status, text, _ = ended(example, "--help")
    assert status == 0
    assert [name for name in OPTIONS.split() if f"--{name} " not in text] == []


def test_a_training_begins_with_weights_but_for_a_last_layer_of_other_classes(tmp_path):
    nn.manual_seed(0)
    trained, fewer, same = (RESNET.resnet18(n, small_stem=True) for n in (9, 4, 9))
    mg.save(tmp_path / "weights", trained)
    new = fewer.fc.weight.numpy().copy()
    for net in (fewer, same):
        load_weights(net, tmp_path / "weights")
    np.testing.assert_array_equal(fewer.fc.weight.numpy(), new)
    np.testing.assert_array_equal(fewer.conv1.weight.numpy(), trained.conv1.weight.numpy())
    np.testing.assert_array_equal(same.fc.weight.numpy(), trained.fc.weight.numpy())
    with pytest.raises(mg.ShapeError, match=r"conv1\.weight has shape"):
        load_weights(RESNET.resnet18(4), tmp_path / "weights")


# ---------------------------------------------------------------- prediction


@pytest.fixture
def picture(pillow, tmp_path):
    path = tmp_path / "picture.png"
    pixels = np.random.default_rng(0).integers(0, 256, (80, 100, 3), np.uint8)
    pillow.fromarray(pixels).save(path)
    return path


@pytest.fixture
def predict(monkeypatch, capsys):
    """The example, run in this process: it returns the lines that it prints."""
    monkeypatch.syspath_prepend(EXAMPLES)
    module = load("", "predict")

    def main(*args):
        monkeypatch.setattr(sys, "argv", ["predict.py", *map(str, args)])
        module.main()
        return capsys.readouterr().out.splitlines()

    main.names_of = module.names_of
    return main


@pytest.mark.parametrize(
    ("model", "make"), [("resnet18", torch_resnet18), long("alexnet", torch_alexnet)]
)
def test_the_five_best_classes_of_a_picture_are_those_that_pytorch_finds(
    tmp_path, picture, predict, model, make, torch
):
    torch.manual_seed(0)
    net = make(torch, 7).eval()
    torch.save(net.state_dict(), tmp_path / "weights")  # as torchvision's are
    names = [f"kind {letter}" for letter in "abcdefg"]
    (tmp_path / "names").write_text("\n".join(names))
    with torch.no_grad():
        shares = net(torch.from_numpy(read_image(picture, 64))[None]).softmax(1)[0].numpy()
    order = np.argsort(-shares)[:5]
    args = [tmp_path / "weights", picture, "--model", model, "--image-size", 64]
    lines = [line.split(maxsplit=1) for line in predict(*args, "--classes", tmp_path / "names")]
    assert [name for _, name in lines] == [names[i] for i in order]
    percents = [float(share.rstrip("%")) for share, _ in lines]
    np.testing.assert_allclose(percents, 100 * shares[order], atol=0.011)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["absent", "picture.png"], "load: .*absent cannot be read"),
        (["few", "absent.png"], r"read_image cannot read .*absent.png \(No such file"),
        (["few", "picture.png"], "few has no fc.bias: it holds no weights of --model resnet18"),
        (["few", "picture.png", "--model", "resnet19"], "invalid choice: 'resnet19'"),
        (["few"], "required: PICTURE"),
    ],
)
def test_what_cannot_be_predicted_is_an_error_of_one_line(
    tmp_path, picture, predict, monkeypatch, args, text
):
    monkeypatch.chdir(tmp_path)
    mg.save("few", {"weight": np.ones(3)})
    with pytest.raises(mg.GraphError, match=text) as raised:
        predict(*args)
    assert "\n" not in str(raised.value)


def test_names_of_classes_are_lines_folders_or_numbers(tmp_path, predict):
    for name in ("dog", "cat"):
        (tmp_path / "train" / name).mkdir(parents=True)
    (tmp_path / "names").write_text("tabby cat\nold dog\n")
    assert predict.names_of(None, 2) == ["class 0", "class 1"]
    assert predict.names_of(tmp_path / "train", 2) == ["cat", "dog"]
    assert predict.names_of(tmp_path / "names", 2) == ["tabby cat", "old dog"]
    with pytest.raises(mg.GraphError, match="names has 2 names; the network 3 classes"):
        predict.names_of(tmp_path / "names", 3)
    with pytest.raises(mg.GraphError, match="absent cannot be read"):
        predict.names_of(tmp_path / "absent", 3)


# ---------------------------------------------------------------- a model of PyTorch


def test_a_model_of_pytorch_learns_the_digits_and_pytorch_goes_on(
    tmp_path, monkeypatch, capsys, torch
):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(EXAMPLES / "torch")
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "autotune=off")
    monkeypatch.delitem(sys.modules, "model", raising=False)

    def learned(*args):
        small = ["--width", "4", "--batch-size", "128", "--lr", "3e-3", *args]
        monkeypatch.setattr(sys, "argv", ["train.py", *small])
        load("torch", "train").main()
        last = capsys.readouterr().out.splitlines()[-1]
        return [float(x) for x in re.search(r"loss (.*?), .* accuracy (.*)%", last).groups()]

    file = str(tmp_path / "checkpoint")
    learned("--epochs", "1", "--checkpoint", file)
    rest = ("--epochs", "3", "--resume", file)
    ours, theirs = learned(*rest), learned(*rest, "--eager")
    del sys.modules["model"]
    assert ours[0] == pytest.approx(theirs[0], abs=0.01) and ours[1] > 85
    assert ours[1] == pytest.approx(theirs[1], abs=1)
