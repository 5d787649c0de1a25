"""Pictures in Graphviz's language."""

import re
import shutil
import subprocess

import pytest

import minigraph as mg
from minigraph import nn, ops, optim


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


def drawn(step, path):
    step.to_dot(path)
    text = path.read_text()
    boxes = dict(re.findall(r'^ +(\w+) \[label="([^"\\]*)', text, re.M))
    edges = re.findall(r"^  (\w+) -> (\w+)", text, re.M)
    assert len(set(edges)) == len(edges)
    return boxes, {(boxes[a], boxes[b]) for a, b in edges}, text


def test_each_step_is_a_box_in_its_layer(step, tmp_path):
    boxes, edges, text = drawn(step, tmp_path / "step.dot")
    assert len([name for name in boxes if name[0] == "s"]) == len(step.report().steps)
    layers = re.findall(r'subgraph cluster\d+ { label="(.*?)";', text)
    assert {"0.inner", "2.inner", "3"} <= set(layers) and len(set(layers)) == len(layers)
    assert ("input the &quot;x&quot;", "matmul") in edges
    assert ("2.norm.weight", "fused") in edges


def test_a_function_of_any_size_draws_the_size_of_its_last_call(tmp_path):
    x = mg.input("x", (None, 3))
    step = mg.comp_graph("reference").compile([x], x * 2)
    step([[1.0, 2.0, 3.0]])
    text = drawn(step, tmp_path / "step.dot")[2]
    assert "float32[1,3]" in text and "test_dot.py" in text


@pytest.mark.skipif(not shutil.which("dot"), reason="Graphviz is not installed")
def test_graphviz_draws_it(step, tmp_path):
    step.to_dot(tmp_path / "step.dot")
    subprocess.run(["dot", "-Tsvg", "-O", tmp_path / "step.dot"], check=True, timeout=60)
    assert "</svg>" in (tmp_path / "step.dot.svg").read_text()
