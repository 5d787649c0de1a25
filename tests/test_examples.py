"""The examples: the networks are torchvision's, and the command lines do what they promise."""

import importlib.util
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from new_process import start, wait

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.data import Synthetic

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(example, name):
    """Return a module of an example."""
    path = EXAMPLES / example / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ALEXNET, RESNET = load("alexnet", "model"), load("resnet", "model")


# ---------------------------------------------------------------- the networks


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (ALEXNET.AlexNet, 61_100_840),
        (RESNET.resnet18, 11_689_512),
        (RESNET.resnet34, 21_797_672),
        (RESNET.resnet50, 25_557_032),
        (RESNET.resnet101, 44_549_160),
    ],
)
def test_the_numbers_of_parameters_are_torchvisions(make, count):
    assert sum(p.size for p in make().parameters()) == count


def test_alexnet_maps_images_of_63_pixels_and_more_to_scores():
    net = ALEXNET.AlexNet(classes=7, channels=1)
    for side in (63, 64, 224):
        assert net(mg.input("x", (2, 1, side, side))).shape == (2, 7)
    with pytest.raises(mg.ShapeError, match=r"have 63 pixels a side or more, not \(62, 64\)"):
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
            wanted = np.sqrt(2 / (outputs * height * width))
            np.testing.assert_allclose(module.weight.numpy().std(), wanted, rtol=0.03)
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


# ---------------------------------------------------------------- the same in PyTorch


def torch_alexnet(torch, classes):
    """AlexNet of `torchvision.models`, without dropout."""
    tnn = torch.nn

    class AlexNet(tnn.Module):
        def __init__(self):
            super().__init__()
            self.features = tnn.Sequential(
                *[tnn.Conv2d(3, 64, 11, 4, 2), tnn.ReLU(), tnn.MaxPool2d(3, 2)],
                *[tnn.Conv2d(64, 192, 5, padding=2), tnn.ReLU(), tnn.MaxPool2d(3, 2)],
                *[tnn.Conv2d(192, 384, 3, padding=1), tnn.ReLU()],
                *[tnn.Conv2d(384, 256, 3, padding=1), tnn.ReLU()],
                *[tnn.Conv2d(256, 256, 3, padding=1), tnn.ReLU(), tnn.MaxPool2d(3, 2)],
            )
            self.avgpool = tnn.AdaptiveAvgPool2d((6, 6))
            self.classifier = tnn.Sequential(
                *[tnn.Dropout(0.0), tnn.Linear(256 * 6 * 6, 4096), tnn.ReLU()],
                *[tnn.Dropout(0.0), tnn.Linear(4096, 4096), tnn.ReLU()],
                tnn.Linear(4096, classes),
            )

        def forward(self, x):
            return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))

    return AlexNet()


def torch_resnet18(torch, classes):
    """ResNet-18 of `torchvision.models`."""
    tnn = torch.nn

    class Block(tnn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = tnn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = tnn.BatchNorm2d(outputs)
            self.conv2 = tnn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = tnn.BatchNorm2d(outputs)
            if stride != 1:
                self.downsample = tnn.Sequential(
                    tnn.Conv2d(inputs, outputs, 1, stride, bias=False), tnn.BatchNorm2d(outputs)
                )

        def forward(self, x):
            y = torch.relu(self.bn1(self.conv1(x)))
            shortcut = self.downsample(x) if hasattr(self, "downsample") else x
            return torch.relu(self.bn2(self.conv2(y)) + shortcut)

    class ResNet(tnn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = tnn.Conv2d(3, 64, 7, 2, 3, bias=False)
            self.bn1 = tnn.BatchNorm2d(64)
            self.maxpool = tnn.MaxPool2d(3, 2, 1)
            self.layer1 = tnn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
            self.layer2 = tnn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
            self.layer3 = tnn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
            self.layer4 = tnn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
            self.avgpool = tnn.AdaptiveAvgPool2d(1)
            self.fc = tnn.Linear(512, classes)

        def forward(self, x):
            x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(torch.flatten(self.avgpool(x), 1))

    return ResNet()


STEPS, BATCH = 20, 4


def our_losses(net, batches, lr):
    images, labels = mg.input("images", (BATCH, 3, 64, 64)), mg.input("labels", (BATCH,), "int64")
    optimizer = optim.Adam(net.parameters(), lr)
    loss = ops.cross_entropy(net(images), labels)
    updates = {**optimizer.minimize(loss), **net.updates()}
    cg = mg.comp_graph(options={"num_threads": 1})
    step = cg.compile([images, labels], loss, updates)
    return [float(step(*batch)) for batch in batches]


def torch_losses(torch, net, batches, lr):
    optimizer = torch.optim.Adam(net.parameters(), lr, fused=True)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            net(torch.from_numpy(images)), torch.from_numpy(labels)
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# At larger rates PyTorch drifts as far from itself, in another memory layout.
@pytest.mark.parametrize(
    ("make", "make_torch", "lr"),
    [
        (lambda n: ALEXNET.AlexNet(n, dropout=0.0), torch_alexnet, 3e-5),
        (RESNET.resnet18, torch_resnet18, 1e-5),
    ],
    ids=["alexnet", "resnet18"],
)
def test_from_the_same_weights_the_losses_follow_pytorchs(make, make_torch, lr):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    theirs, ours = make_torch(torch, 10), make(10)
    ours.load_state_dict(theirs.state_dict())
    rng = np.random.default_rng(0)
    batches = [
        (rng.standard_normal((BATCH, 3, 64, 64), "float32"), rng.integers(0, 10, BATCH))
        for _ in range(STEPS)
    ]
    expected = torch_losses(torch, theirs, batches, lr)
    np.testing.assert_allclose(our_losses(ours, batches, lr), expected, rtol=1e-3)


# ---------------------------------------------------------------- the command lines


def begin(example, *args):
    """Start an example.  One thread: on a busy machine several wait longer than they compute."""
    return start(EXAMPLES / example / "train.py", "--threads", 1, *args)


def output(example, *args):
    """Return what an example prints that ends well."""
    return wait(begin(example, *args))[0].splitlines()


def accuracy(lines):
    """Return the test accuracy of the last line, in percent."""
    assert re.fullmatch(r"loss \d+\.\d+", lines[-2])
    found = re.fullmatch(r"test accuracy (\d+\.\d+)%", lines[-1])
    assert found, lines[-1]
    return float(found[1])


def test_alexnet_trains_on_synthetic_images():
    lines = output("alexnet", "--data", "synthetic", "--epochs", 1, "--batch-size", 256)
    assert lines[0].startswith("alexnet with 57,044,810 parameters, synthetic (1024 images")
    assert 0 <= accuracy(lines) <= 100


def test_resnet18_learns_the_digits():
    assert accuracy(output("resnet", "--epochs", 3)) > 90


def test_resnet18_stopped_by_ctrl_c_resumes_to_the_same_numbers(tmp_path):
    options = ["--data", "synthetic", "--image-size", 8, "--batch-size", 128, "--epochs", 2]
    whole = output("resnet", *options)
    file = tmp_path / "checkpoint"
    process = begin("resnet", *options, "--checkpoint", file)
    while not file.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stopped, _ = wait(process, status=130)
    assert "goes on from there" in stopped.splitlines()[-1]
    assert output("resnet", *options, "--resume", file)[-3:] == whole[-3:]
    file.unlink()  # 90 MB


@pytest.mark.parametrize(
    ("example", "args"),
    [
        ("alexnet", ["--device", "tpu"]),
        ("resnet", ["--opt-level", "9"]),
        ("resnet", ["--model", "resnet19"]),
    ],
)
def test_bad_arguments_get_one_line_and_exit_code_2(example, args):
    _, errors = wait(begin(example, *args), status=2)
    assert re.fullmatch(f"error: .*{args[-1]}.*\n", errors), errors


OPTIONS = "data opt-level device batch-size epochs lr seed checkpoint resume"


@pytest.mark.parametrize("example", ["alexnet", "resnet"])
def test_help_names_every_option(example):
    text = "\n".join(output(example, "--help"))
    assert [name for name in OPTIONS.split() if f"--{name} " not in text] == []
