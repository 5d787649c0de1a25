"""Typical mistakes: programs of a few lines, each of which raises an error that teaches.

`tests/golden/errors.txt` holds the messages.  A program that fails
with another message than the golden one has a message to read, and then to accept or to mend.
"""

from __future__ import annotations

import warnings

FILE = "train.py"  # what messages call the programs
BEGIN = """
import numpy as np
import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.data import DataLoader

images, labels = mg.input("images", (32, 784)), mg.input("labels", (32,), "int64")
net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
loss = ops.cross_entropy(net(images), labels)
cg = mg.comp_graph("cpu", {"autotune": "off"})
predict, step = cg.compile([images], net(images)), cg.compile([images, labels], loss)
""".lstrip()

# By subject.  Each line is a program that goes on after BEGIN.
MISTAKES = {
    "Shapes": """
images @ mg.Parameter(np.ones((128, 10), "float32"))
ops.add(images, ops.ones((32, 10)))
ops.matmul(images, ops.ones((784, 10)).T)
ops.concat([images, ops.ones((32, 10))], axis=0)
ops.stack([images, ops.ones((32, 10))])
images.reshape(32, 28, 29)
images.reshape(-1, -1)
images.transpose(0, 2)
images.sum(axis=2)
ops.squeeze(images, 0)
ops.split(images, 5, axis=0)
images[40]
images[:, :, 0]
ops.where(images > 0, images, ops.zeros((3,)))
ops.broadcast_to(images, (784, 32))
ops.pad(images, ((1, 1), (1, 1), (1, 1)))
ops.einsum("ij,jk->ik", images, images)
ops.tile(images, (2, -1))
""",
    "Layers": """
nn.Linear(128, 10)(images)
nn.Conv2d(3, 8, 3)(images)
nn.Conv2d(3, 8, 3)(mg.input("pictures", (32, 1, 28, 28)))
nn.Conv2d(1, 8, 30)(mg.input("pictures", (32, 1, 28, 28)))
nn.Conv2d(3, 8, 3, groups=2)
nn.MaxPool2d(30)(mg.input("pictures", (32, 1, 28, 28)))
nn.BatchNorm2d(8)(mg.input("pictures", (32, 1, 28, 28)))
nn.LayerNorm(10)(images)
nn.Embedding(100, 16)(images)
nn.MultiheadAttention(16, 3)
nn.Dropout(1.5)
nn.Sequential(nn.Linear(784, 128), nn.ReLU)
nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(64, 10))(images)
net.forwards(images)
net.cuda()
net.to("cuda")
net.load_state_dict({"0.weight": np.ones((128, 784))})
net.load_state_dict({name: value.T for name, value in net.state_dict().items()})
net.get_submodule("3")
""",
    "Losses and gradients": """
ops.cross_entropy(net(images), mg.input("labels", (32,), "float32"))
ops.cross_entropy(net(images), mg.input("labels", (16,), "int64"))
ops.mse_loss(net(images), mg.input("target", (10, 32)))
mg.grad(net(images), list(net.parameters()))
mg.grad(loss, net)
mg.grad(loss, [1.0])
loss.backward()
loss.item()
if loss > 0: pass
float(loss)
np.asarray(loss)
""",
    "Types": """
images & 1
ops.take(images, images, axis=0)
mg.input("x", (3,), "float23")
mg.input("x", (3, -1))
mg.input("", (3,))
images.astype("string")
ops.check(images, "positive")
ops.one_hot(images, 10)
images.cuda()
images.backwards()
ops.relu()
ops.relu("images")
ops.clip(images, "0", 1)
ops.dropout(images, p=2)
""",
    "Compiling": """
mg.comp_graph("gpu")
mg.comp_graph(options={"graph_opt_levle": 3})
mg.comp_graph(options={"graph_opt_level": 4})
mg.comp_graph(options={"autotune": True})
mg.comp_graph().compile([images], loss)
mg.comp_graph().compile([images, images], loss)
mg.comp_graph().compile([net.get_submodule("0").weight], loss)
mg.comp_graph().compile([images, labels], net)
mg.comp_graph().compile(images, loss)
mg.comp_graph().compile([images, labels], loss, {"0.weight": loss})
mg.comp_graph().compile([images, labels], loss, {net.get_submodule("0").weight: loss})
mg.comp_graph().compile([images, labels], loss, net.updates)
mg.comp_graph().compile([images, labels], optim.Adam(net.parameters()).minimize(loss))
predict.save_cache("missing/folder.cache")
""",
    "Calls": """
predict()
predict(np.zeros((32, 784)), np.zeros(32))
predict(np.zeros((16, 784)))
predict(np.zeros((32, 784), complex))
predict(image=np.zeros((32, 784)))
predict(np.zeros((32, 784)), images=np.zeros((32, 784)))
predict("images")
step(np.zeros((32, 784)), np.full(32, 10))
mg.comp_graph("cpu").compile([mg.input("x", (None, 3))], []).report()
predict.report().section("kernel")
predict.profile(np.zeros((32, 784)), calls=0)
""",
    "Training and data": """
optim.Adam(net.parameters)
optim.Adam(net)
optim.Adam([])
optim.Adam(net.parameters(), lr=-1)
optim.SGD(net.parameters(), momentum=0.9, nesterov="yes")
optim.Adam(net.parameters()).step()
optim.Adam(net.parameters()).minimize(net(images))
optim.Adam(net.parameters()).minimize(loss, clip_norm=-1.0)
optim.Accumulation(net.parameters()).mean
net.get_submodule("0").weight.assign(np.zeros((784, 128)))
DataLoader({"image": np.zeros((10, 3)), "label": np.zeros(9)}, batch_size=2)
DataLoader(np.zeros((10, 3)), batch_size=0)
mg.load("missing.safetensors")
""",
}


def programs() -> list[tuple[str, str]]:
    """Return the programs, each behind its subject."""
    return [(about, line) for about, text in MISTAKES.items() for line in text.strip().splitlines()]


def names() -> dict[str, object]:
    """Return what every program begins with."""
    given: dict[str, object] = {}
    exec(compile(BEGIN, FILE, "exec"), given)
    return given


def message(program: str, given: dict[str, object]) -> str:
    """Return the error of a program as Python would end with it; empty if it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile("\n" * BEGIN.count("\n") + program, FILE, "exec"), dict(given))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def golden(text: str) -> dict[str, str]:
    """Return the message of each program in the golden file."""
    lines = text.splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return {program.removeprefix(">>> "): error for program, error in pairs}


def text() -> str:
    """Return all programs with their messages, as the golden file holds them."""
    given = names()
    return "".join(f">>> {line}\n{message(line, given)}\n" for _, line in programs())
