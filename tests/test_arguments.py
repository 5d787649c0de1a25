"""Arguments of the wrong kind: each is one error of ours, which names the argument, or works."""

import collections
import resource

import numpy as np
import pytest
from wrong_arguments import calls, invoke, variants

import minigraph as mg
from minigraph import nn, ops
from minigraph.arguments import checked, short_repr
from minigraph.errors import MAX_MESSAGE, GraphError, MinigraphWarning
from minigraph.graph.spec import MAX_AXES, Spec

SAMPLE = 7  # the short run does one variant in so many


@pytest.fixture
def little_memory():
    """Let this process have 2 GiB more than it has, so that no large array is really made."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + (2 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Let what is saved under an odd name not be left in the repository."""
    monkeypatch.chdir(tmp_path)


def test_the_calls_are_those_of_every_op_and_right(elsewhere):
    every = [*calls()]
    assert {name for name, *_ in every} >= {f"ops.{name}" for name in ops.__all__}
    for name, function, kwargs in every:
        try:
            invoke(function, kwargs)
        except GraphError as error:
            assert "absent" in str(error), f"{name}: {error}"


def raw_errors(step):
    """Try one variant in `step`: return what is raised that is no error of ours, and how many."""
    raw = collections.Counter()
    count = 0
    for name, argument, odd, call in variants():
        count += 1
        if count % step:
            continue
        try:
            call()
        except (GraphError, MinigraphWarning) as error:
            if "\n" in str(error) or len(str(error)) > MAX_MESSAGE:
                raw[f"{name}: {argument}={short_repr(odd)}: more than one line, or a long one"] += 1
        except Exception as error:
            raw[f"{name}: {argument}={short_repr(odd)}: {type(error).__name__}: {error}"] += 1
    return raw, count


def test_an_odd_argument_is_an_error_of_ours_or_works(little_memory, elsewhere):
    raw, count = raw_errors(SAMPLE)
    assert count > 20_000
    assert not raw, "\n".join(raw)


@pytest.mark.long
def test_every_odd_argument_is_an_error_of_ours_or_works(little_memory, elsewhere):
    raw, count = raw_errors(1)
    print(f"{count} calls, {raw.total()} raw errors")
    assert not raw, "\n".join(raw)


X = mg.input("x", (2, 3))


def test_numbers_of_numpy_and_arrays_without_axes_are_numbers():
    assert mg.input("x", np.int64(3)).shape == (3,)
    assert mg.input("x", np.array([2, 3])).shape == (2, 3)
    assert ops.softmax(X, np.array(-1)).shape == (2, 3)
    assert ops.sum(X, axis=np.int8(0), keepdims=np.True_).shape == (1, 3)
    assert ops.reshape(X, [np.int32(3), -1]).shape == (3, 2)
    assert ops.dropout(X, np.float32(0.5)).shape == (2, 3)
    assert "kernel_size=2, stride=2" in repr(nn.MaxPool2d(np.int64(2)))


def test_a_dtype_of_none_is_the_default_and_for_weights_that_is_float32():
    for layer in (nn.Linear(3, 2, dtype=None), nn.Conv2d(3, 2, 1, dtype=None)):
        assert layer.weight.dtype == layer.bias.dtype == np.float32
    assert nn.LayerNorm(3, dtype=None).weight.dtype == np.float32
    assert nn.BatchNorm2d(3, dtype=None).running_mean.dtype == np.float32
    assert mg.input("x", 3, None).dtype == np.float32
    assert ops.one_hot(np.array([1]), 3, None).dtype == np.int64


def test_a_spec_is_what_numpy_can_hold():
    assert np.zeros(Spec((1,) * MAX_AXES).shape).ndim == MAX_AXES


def test_a_value_is_shown_in_one_short_line():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    assert short_repr("a\nb") == r"'a\nb'"
    assert short_repr(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
    assert len(short_repr("x" * 1000)) == 80
    assert short_repr(Broken()) == "<Broken>"
    assert short_repr(10**5000) == "<int>"


def test_annotations_without_a_kind_are_not_checked():
    @checked
    def function(a, b: list, c: int = 3, *rest, d: float = 1):
        return a, b, c, rest, d

    assert function("a", "b") == ("a", "b", 3, (), 1.0)
    assert function(None, None, np.int8(2), "x", d=2) == (None, None, 2, ("x",), 2.0)
    with pytest.raises(GraphError, match="function: d is 'x'; it takes a number"):
        function(1, 2, d="x")
