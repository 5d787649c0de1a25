"""Files that something has changed: the right answer, or an error of one line."""

import json
import random
import resource
import time

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph_file.writing import KEY
from minigraph.serialization import tensor_file

ATTEMPTS = 150
HOSTILE = [None, -1, 0, 2**62, 2**70, 1e308, "", "Scan", "a\n", [], [[]], {}, True, [2**40] * 3]


def graph_file(path):
    x = mg.input("x", (None, 6))
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    steps = ops.scan(lambda h, v: (h + v, h * v), ops.zeros((6,)), x)[1]
    mg.save_graph(path, x, ops.softmax(net(steps)))


def index_file(path):
    mg.save(path.with_name("one.safetensors"), {"a": np.ones((3, 2)), "b": np.arange(4)})
    path.write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys("ab", "one.safetensors")})
    )


def pt_file(path):
    torch = pytest.importorskip("torch")
    weights = {"a": torch.ones(3, 2), "b": torch.arange(4), "nested": {"c": [1, 2.5, "x", None]}}
    torch.save(weights, path)


def onnx_file(path):
    pytest.importorskip("onnx")
    x = mg.input("x", (2, 3, 8, 8))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    mg.onnx.save(path, x, ops.softmax(net(x)))


def load_onnx(path):
    return mg.onnx.load(path)


FILES = {
    "net.graph": (graph_file, mg.load_graph),
    "net.index.json": (index_file, mg.load),
    "net.onnx": (onnx_file, load_onnx),
    "net.pt": (pt_file, mg.load),
}


def mutated(data, rng):
    """Return bytes of which some were changed, removed, repeated, moved or cut."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, count = rng.randrange(len(damaged) + 1), rng.choice((1, 2, 8, 100))
        match rng.randrange(5):
            case 0 | 1 if at < len(damaged):
                damaged[at] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, damaged[at] ^ 1 << rng.randrange(8))
                )
            case 2:
                del damaged[at : at + count]
            case 3:
                damaged[at:at] = damaged[at : at + count] * rng.choice((1, 3))
            case 4:
                del damaged[rng.randrange(len(damaged) + 1) :]
    return bytes(damaged)


def altered(value, rng):
    """Return JSON with another value in one place of it."""
    if isinstance(value, dict | list) and value and rng.random() < 0.95:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(keys)
        value = value.copy()
        value[key] = altered(value[key], rng)
        return value
    return rng.choice(HOSTILE)


def survives(load, path):
    """Return a file's arrays, or None for an error of one line; fail for any other error."""
    start = time.monotonic()
    try:
        return load(path)
    except mg.GraphError as error:
        assert "\n" not in str(error)
        return None
    finally:
        assert time.monotonic() - start < 5


@pytest.mark.filterwarnings("ignore::minigraph.MinigraphWarning")
@pytest.mark.parametrize("name", FILES)
def test_changed_files_load_as_before_or_are_an_error_of_one_line(name, tmp_path):
    write, load = FILES[name]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    path, rng = tmp_path / name, random.Random(0)
    write(path)
    data, whole = path.read_bytes(), load(path)
    errors = 0
    for _ in range(ATTEMPTS):
        path.write_bytes(mutated(data, rng))
        arrays = survives(load, path)
        errors += arrays is None
        if isinstance(arrays, dict):
            for key in arrays.keys() & whole.keys() & {"a", "b"}:
                np.testing.assert_array_equal(arrays[key], whole[key])
    assert errors > ATTEMPTS / 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + (1 << 20)


def test_a_graph_of_other_values_with_a_right_checksum_loads_or_is_an_error_of_one_line(tmp_path):
    path, rng = tmp_path / "net.graph", random.Random(0)
    graph_file(path)
    arrays, metadata = tensor_file.parse("", path, path.read_bytes())
    record = json.loads(metadata[KEY])
    errors = 0
    for _ in range(2 * ATTEMPTS):
        tensor_file.write("", path, arrays, {KEY: json.dumps(altered(record, rng))})
        errors += survives(mg.load_graph, path) is None
    assert errors > ATTEMPTS
