"""Pictures in Graphviz's language."""

import re
import shutil
import subprocess

import pytest

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.inspect import dot


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return x + ops.relu(self.norm(self.inner(x)))


def training(blocks):
    x = mg.input('the "x"', (4, 8))
    net = nn.Sequential(*(Block() for _ in range(blocks)), nn.Linear(8, 1))
    loss = net(x).mean()
    cg = mg.comp_graph(options={"graph_opt_level": 3, "autotune": "off"})
    return cg.compile([x], loss, optim.Adam(net.parameters()).minimize(loss))


@pytest.fixture(scope="module")
def step():
    return training(3)


def drawn(step, path, **how):
    step.to_dot(path, **how)
    text = path.read_text()
    boxes = dict(re.findall(r'^  (\w+) \[label="([^"\\]*)', text, re.M))
    edges = re.findall(r"^  (\w+) -> (\w+)", text, re.M)
    assert len(set(edges)) == len(edges) or how
    return boxes, {(boxes[a], boxes[b]) for a, b in edges}, text


def test_layers_are_boxes_forwards_and_backwards(step, tmp_path):
    boxes, edges, _ = drawn(step, tmp_path / "step.dot")
    assert {"0.inner", "0.inner, backward", "3", "3, backward"} <= set(boxes.values())
    assert ("input the &quot;x&quot;", "0.inner") in edges
    assert ("0.norm", "1.inner") in edges or ("0", "1.inner") in edges
    assert len(set(boxes.values())) == len(boxes)


def test_the_update_is_one_box_that_counts_its_parameters(step, tmp_path):
    boxes, _, text = drawn(step, tmp_path / "step.dot")
    (count,) = re.findall(r'label="test_dot.py:\d+\\n[^"]*, (\d+) parameters', text)
    assert int(count) >= 3 * 14  # each with two moments
    assert "weight" not in text and len(boxes) < 25


def test_many_layers_are_drawn_in_the_layers_around_them(step, tmp_path, monkeypatch):
    monkeypatch.setattr(dot, "BOXES", 12)
    boxes, edges, _ = drawn(step, tmp_path / "step.dot")
    assert {"0", "0, backward", "2"} <= set(boxes.values())
    assert not any("inner" in label for label in boxes.values())
    assert ("0", "1") in edges and ("2, backward", "1, backward") in edges


def test_the_whole_has_every_step_and_parameter(step, tmp_path):
    boxes, _, text = drawn(step, tmp_path / "step.dot", whole=True)
    steps = step.report().steps
    assert len(boxes) >= len(steps) and "2.norm.weight" in text


def test_a_function_of_any_size_draws_the_size_of_its_last_call(tmp_path):
    x = mg.input("x", (None, 3))
    step = mg.comp_graph("reference").compile([x], x * 2)
    step([[1.0, 2.0, 3.0]])
    assert "float32[1,3]" in drawn(step, tmp_path / "step.dot", whole=True)[2]
    assert "test_dot.py" in drawn(step, tmp_path / "step.dot")[2]


@pytest.mark.skipif(not shutil.which("dot"), reason="Graphviz is not installed")
@pytest.mark.parametrize("whole", [False, True])
def test_graphviz_draws_it(step, tmp_path, whole):
    step.to_dot(tmp_path / "step.dot", whole)
    subprocess.run(["dot", "-Tsvg", "-O", tmp_path / "step.dot"], check=True, timeout=60)
    assert "</svg>" in (tmp_path / "step.dot.svg").read_text()


def test_whole_is_true_or_false(step, tmp_path):
    with pytest.raises(mg.GraphError, match=r"whole is 'yes'; it takes True or False"):
        step.to_dot(tmp_path / "step.dot", "yes")
