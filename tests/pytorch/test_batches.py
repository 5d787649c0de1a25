"""Batches of a training step: nested in any way, and what the model takes by keyword."""

import copy
import dataclasses
import math

import pytest

torch = pytest.importorskip("torch")
from trained_pair import QUICK, Pair, adam, same, sgd  # noqa: E402

import minigraph.torch as mgt  # noqa: E402
from minigraph.errors import GraphError  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


@dataclasses.dataclass
class Graph:
    nodes: torch.Tensor
    edges: list


torch.export.register_dataclass(Graph)


@dataclasses.dataclass
class Unknown:
    nodes: torch.Tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, text, graph, scale):
        words = (self.embed(text["ids"]) * text["mask"][..., None]).mean(1)
        first, second = graph.edges
        return self.head(words + graph.nodes[first] * graph.nodes[second] * scale)


def nested(n=3):
    text = {"ids": torch.randint(0, 9, (n, 5)), "mask": torch.rand(n, 5).double()}
    edges = [torch.randint(0, 6, (n,)) for _ in range(2)]
    graph = Graph(torch.randn(6, 4).double(), edges)
    return text, graph, 2.0, (torch.randint(0, 3, (n,)), {"scores": torch.randn(n, 3).double()})


def loss(scores, target):
    labels, others = target
    pulled = functional.mse_loss(scores, others["scores"])
    return functional.cross_entropy(scores, labels) + pulled


def test_items_of_a_batch_may_be_nested():
    pair = Pair(adam, Net(), nested, loss)
    pair.train(5)
    pair.same()
    assert "text['ids']: int64[3,5]" in repr(pair.step.function)


def test_nested_batches_may_be_of_any_size():
    one, two, none = {0: "n"}, {0: "n"}, None
    pair = Pair(sgd, Net(), nested, loss, dynamic=[one, two, none, one, one, one, one])
    for n in (3, 5, 2):
        pair.train(batch=nested(n))
    pair.same()


class Judging(nn.Module):
    """A model that returns its loss, as those of Hugging Face's `transformers` do."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids=None, mask=None, labels=None, pool="mean"):
        words = self.embed(ids) if mask is None else self.embed(ids) * mask[..., None]
        scores = self.head(words.mean(1) if pool == "mean" else words.amax(1))
        return {"loss": functional.cross_entropy(scores, labels), "scores": scores}


def by_keyword(n=3):
    return {
        "labels": torch.randint(0, 3, (n,)),
        "mask": torch.rand(n, 5).double(),
        "ids": torch.randint(0, 9, (n, 5)),
        "pool": "max",
    }


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_may_take_its_batch_by_keyword(dynamic):
    theirs = Judging().double()
    ours = copy.deepcopy(theirs)
    optimizers = [adam(m.parameters()) for m in (theirs, ours)]
    inputs = by_keyword()
    step = mgt.training_step(
        *(ours, lambda out, labels: out["loss"], optimizers[1], (inputs["labels"],), inputs),
        dynamic=dynamic,
        options=QUICK,
    )
    for n in (4, 2) if dynamic else (3, 3):
        inputs = by_keyword(n)
        optimizers[0].zero_grad()
        expected = theirs(**inputs)["loss"]
        expected.backward()
        optimizers[0].step()
        actual = step(inputs["labels"], **dict(reversed(inputs.items())))
        torch.testing.assert_close(actual, expected.detach())
    same(ours, theirs)
    same(*reversed(optimizers))
    assert "ids" in str(step.profile(inputs["labels"], **inputs, calls=1)) or step.calls


def test_batches_that_differ_from_the_example_are_one_clear_line():
    text, graph, scale, target = nested()
    step = Pair(sgd, Net(), lambda: (text, graph, scale, target), loss).step

    def says(match, *batch, **named):
        with pytest.raises(GraphError, match=match) as error:
            step(*batch, **named)
        assert "\n" not in str(error.value)

    lists = r"\(text\['ids'\], text\['mask'\], graph.nodes, .*\), got \(\{'ids': int64\[3,5\]\}"
    says(f"takes a batch of 7 tensors {lists}", {"ids": text["ids"]}, graph, scale, target)
    says("takes a batch of 7 tensors", text, graph, scale, target, mask=text["mask"])
    wrong = {**text, "mask": text["mask"].float()}
    says(r"batch\[0\]\['mask'\] \(text\) was of torch.float64", wrong, graph, scale, target)
    says(r"batch\[2\] \(scale\) was 2.0 .* is 3.0 now", text, graph, 3.0, target)
    says(r"\(scale\) was 2.0 .* is float32\[\] now", text, graph, torch.tensor(2.0), target)
    says(r"batch\[1\].edges\[0\] \(graph\) is a tensor, not int", text, Graph(graph.nodes, [0, 1]),
         scale, target)  # fmt: skip
    with pytest.raises(GraphError, match=r"not Unknown; torch.export.register_dataclass"):
        Pair(sgd, Net(), lambda: (text, Unknown(graph.nodes), scale, target), loss)


class Positions(nn.Module):
    """Attention to earlier words, with a mask and a table of positions for nine words."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
        self.places = nn.Parameter(torch.randn(1, 9, 4))
        self.register_buffer("mask", torch.ones(9, 9).tril())

    def forward(self, text):
        length = text.shape[1]
        assert length <= 9
        x = self.embed(text) + self.places[:, :length]
        shares = (x @ x.mT).masked_fill(self.mask[:length, :length] == 0, -math.inf).softmax(-1)
        return self.head(shares @ x).mT


@pytest.mark.parametrize("size", ["time", torch.export.Dim("time", max=8)])
def test_a_table_is_cut_to_the_length_of_a_text(size):
    def batch(n=5):
        return torch.randint(0, 9, (2, n)), torch.randint(0, 3, (2, n))

    pair = Pair(sgd, Positions(), batch, dynamic=[{1: size}, {1: size}])
    for n in (5, 8, 2):
        pair.train(batch=batch(n))
    pair.same()
    with pytest.raises(GraphError, match=r"slice 0:10 is out of range for an axis of length 9"):
        pair.step(*batch(10))


AUTO = torch.export.Dim.AUTO


@pytest.mark.parametrize("sizes", ["batch", [0, 0], [{0: "no name"}, {}], [{0: AUTO}, {}]])
def test_sizes_that_differ_are_named(sizes):
    with pytest.raises(GraphError, match="dynamic is a bool, or for each of the 2 tensors"):
        Pair(sgd, dynamic=sizes)


def test_a_size_that_the_model_fixes_is_named():
    said = r"the model at .*: You marked batch\[0\].size\(\)\[3\] as .* constant \(6\)"
    with pytest.raises(GraphError, match=said):
        Pair(sgd, dynamic=[{3: "width"}, {}], model=nn.Sequential(nn.Flatten(), nn.Linear(108, 5)))


def test_options_and_keywords_are_dicts():
    with pytest.raises(GraphError, match=r"options is 'fast'; it takes a mapping"):
        Pair(sgd, options="fast")
    with pytest.raises(GraphError, match=r"kwargs is \['x'\]; it takes a dict of the model's"):
        Pair(sgd, kwargs=["x"])
