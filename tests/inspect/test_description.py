"""The record of a function: what its passes did, node by node, and what runs."""

import json
import random
import re

import numpy as np
import pytest
from described import Small, training_step

import minigraph as mg
from minigraph import ops
from minigraph.graph.location import Within
from minigraph.inspect.comparison import differences
from minigraph.inspect.history import History
from minigraph.inspect.page import from_file, to_html
from minigraph.inspect.record import from_text, to_text
from minigraph.passes.notes import PassRecord


@pytest.fixture(scope="module")
def function():
    step, arrays = training_step(Small(), 3)
    step.profile(*arrays, calls=1)
    return step


@pytest.fixture(scope="module")
def description(function):
    return function.describe()


def at(description, k):
    """Return the nodes of a stage, by id, with what they read and the box they are in."""
    nodes = {}
    for stage in description.stages[: k + 1]:
        for gone in stage.removed:
            del nodes[gone.id]
        nodes |= {node.id: (node, node.reads, node.box) for node in stage.added}
        nodes |= {r.id: (nodes[r.id][0], r.reads, r.box) for r in stage.rewired}
    return nodes


def stage(description, name):
    return next(k for k, record in enumerate(description.passes, 1) if record.name == name)


def test_stages_are_those_of_the_report_and_each_is_whole(function, description):
    passes = function.report().passes
    assert [p.name for p in description.passes] == [p.name for p in passes]
    assert [p.fired for p in description.passes] == [p.fired for p in passes]
    assert len(description.stages) == 1 + len(passes)
    for k in range(len(description.stages)):
        nodes = at(description, k)
        assert all(x in nodes for _, reads, _ in nodes.values() for x in reads)
        assert all(box in nodes for _, _, box in nodes.values() if box)


def test_a_pass_that_does_nothing_changes_nothing(description):
    idle = description.stages[stage(description, "fold_batch_norm")]
    assert (idle.added, idle.removed, idle.rewired) == ((), (), ())


def test_nodes_that_a_pass_replaces_name_what_took_their_place(description):
    k = stage(description, "fuse_batch_norm")
    before, after = at(description, k - 1), at(description, k)
    removed = {before[r.id][0].name: r for r in description.stages[k].removed}
    (heir,) = {after[x][0].name for x in removed["relu"].became}
    assert heir == "batch_norm_relu"


def test_fusion_puts_the_ops_that_were_there_into_boxes(description):
    k = stage(description, "fuse_kernels")
    before, after = at(description, k - 1), at(description, k)
    box = next(n for n in description.stages[k].added if n.kind == "box" and n.role == "forward")
    inside = [i for i, (_, _, b) in after.items() if b == box.id]
    assert {"sum", "rsqrt"} <= {after[i][0].name for i in inside}
    assert set(inside) <= set(before)


def test_nodes_have_their_layer_their_line_and_their_part_in_training(description):
    nodes = [node for node, _, _ in at(description, 0).values() if node.kind == "op"]
    forward = {n.layer for n in nodes if n.name == "conv2d"}
    assert forward == {"conv1", *(f"layer1.{i}.conv{j}" for i in (0, 1) for j in (1, 2))}
    backward = {n.layer for n in nodes if n.name == "conv2d_backward_weights"}
    assert backward == forward
    roles = {n.name: n.role for n in nodes}
    assert roles["conv2d"] == "forward"
    assert roles["conv2d_backward_weights"] == "backward"
    assert roles["sqrt"] == "update"
    updates = {n.layer for n in nodes if n.name == "sqrt"}
    assert {"conv1", "bn1", "layer1.1.conv2", "fc"} <= updates  # of their parameters
    assert all(n.line.rpartition(":")[2].isdigit() for n in nodes)


def test_steps_have_kernels_buffers_work_and_times(function, description):
    report = function.report()
    assert [(s.name, s.kernel) for s in description.steps] == [(o, k) for o, k, _ in report.steps]
    conv = next(s for s in description.steps if s.name == "conv2d")
    assert conv.flops == 2 * 2 * 16 * 8 * 8 * 3 * 9
    assert min(description.speeds) > 1e8
    assert len(description.runs) == len(description.steps)
    arena = [b for b in description.buffers if b.space == "arena"]
    assert max(b.offset + b.bytes for b in arena) <= description.memory.arena_bytes
    buffers = {b for s in description.steps for b in s.writes}
    assert {b.id for b in arena if b.bytes} <= buffers


def test_neighbours_that_were_not_fused_are_named_by_their_ids(description):
    nodes = at(description, len(description.stages) - 1)
    pairs = [ids for s in description.stages for ids in s.stops]
    present = [(ids, s) for ids, s in zip(pairs, description.stops, strict=True) if all(ids)]
    assert all(nodes[ids[0]][0].name == s.producer for ids, s in present)
    assert any(s.reason == "conv2d has a separate kernel" for _, s in present)


def test_a_common_subexpression_becomes_the_one_that_is_kept():
    x = mg.input("x", (3,))
    first, second = ops.exp(x), ops.exp(x)
    function = mg.comp_graph("cpu", {"graph_opt_level": 1}).compile([x], first * 2 + second * 3)
    report = function.describe()
    shared = next(s for s in report.stages if s.removed)
    nodes = at(report, 0)
    (gone,) = [r for r in shared.removed if nodes[r.id][0].name == "exp"]
    assert [nodes[i][0].name for i in gone.became] == ["exp"]


def test_an_op_in_another_layout_takes_the_place_of_the_one_before():
    x = mg.input("x", (2, 3))
    y, mean, _ = ops.batch_norm_with_statistics(x)
    history = History(2, ())
    history.add(mg.graph.Graph((x,), (ops.relu(y), mean)))
    with Within(order=y.inputs[0].order[0]):
        y, mean, _ = ops.batch_norm_with_statistics(x.reshape(2, 3, 1))
        outputs = ops.relu(y).reshape(2, 3), mean.reshape(3, 1)
    history.add(mg.graph.Graph((x,), outputs), PassRecord("assign_layouts", 4, 6, 0.0))
    names = {node.id: node.name for stage in history.stages for node in stage.added}
    became = {names[r.id]: [names[x] for x in r.became] for r in history.stages[1].removed}
    assert "batch_norm" in became["batch_norm"]


def test_a_graph_that_is_not_as_the_passes_left_it_is_a_stage_of_its_own():
    x = mg.input("x", (3,))
    with_exp = mg.graph.Graph((x,), (ops.exp(x),))
    other = mg.graph.Graph((x,), (ops.tanh(x),))
    history = History(1, ())
    history.add(with_exp)
    history.add(with_exp, PassRecord("nothing", 2, 2, 0.0))
    ids = history.ids_of(other)
    assert [record.name for record in history.passes] == ["nothing", "as it runs"]
    assert ids[other.outputs[0]] == 3


def test_a_page_and_json_give_the_description_back(description, tmp_path):
    assert from_text(to_text((description,))) == (description,)
    (tmp_path / "page.html").write_text(to_html([description, description]))
    assert from_file(tmp_path / "page.html") == (description, description)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "is wrong: .*format"),
        ('{"format": 9, "functions": []}', "is of format 9; this version reads 3"),
        ('<script type="text/plain" id="data">AAAA</script>', "is a damaged page"),
        ('<script type="text/plain" id="data">eJwr</script>', "is a truncated page"),
        ("no page", "is neither a page of minigraph nor the JSON of one"),
        ("{no JSON", "is cut off, or no JSON"),
    ],
)
def test_what_is_no_page_is_refused_in_one_line(text, why, tmp_path):
    (tmp_path / "odd.html").write_text(text)
    with pytest.raises(mg.GraphError, match=f"odd.html {why}"):
        from_file(tmp_path / "odd.html")


def test_times_of_steps_that_there_are_not_are_refused(description):
    damaged = json.loads(to_text((description,)))
    damaged["functions"][0]["runs"][0]["step"] = 10**6
    with pytest.raises(ValueError, match=r"^is damaged: it has times of steps"):
        from_text(json.dumps(damaged))


def test_a_description_is_compared_or_refused_in_a_line_whatever_was_changed():
    """Hundreds of files: a field that is missing or odd, an id that is another, parts twice."""
    odd = (None, -1, 0, 1, 10**6, 10**400, 1e308, "", "x" * 9999, "\ud800", [], {}, [[0]])
    x = mg.input("x", (4, 8))
    small = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([x], ops.softmax(x) @ x.T)
    small.profile(np.ones((4, 8)), calls=1)
    description = small.describe()
    text, refused = to_text((description,)), 0
    for seed in range(300):
        rng = random.Random(seed)
        whole = json.loads(text)
        within, key = whole["functions"], 0
        while isinstance(within[key], dict | list) and within[key] and rng.random() < 0.9:
            within = within[key]
            key = rng.choice(sorted(within) if isinstance(within, dict) else range(len(within)))
        match rng.randrange(4):
            case 0:
                within[key] = rng.choice(odd)
            case 1:
                del within[key]
            case 2 if isinstance(within, list):
                within.append(within[key])
            case _ if isinstance(within[key], int):
                within[key] += rng.choice((-7, -1, 1, 7))
        try:
            for function in from_text(json.dumps(whole)):
                differences(function, description)
        except ValueError as error:
            refused += 1
            assert re.fullmatch(r"is .{,200}", str(error)), seed
    assert 50 < refused < 250


def test_two_levels_differ_in_their_passes_kernels_and_times(description):
    step, arrays = training_step(Small(), 2)
    step.profile(*arrays, calls=1)
    changes = differences(step.describe(), description)
    by_subject = {d.subject for d in changes}
    assert by_subject >= {"options", "passes", "steps", "kernels", "memory", "times"}
    assert ("options", "graph_opt_level", "2", "3") in changes
    (taken,) = [d for d in changes if d.what == "decompose"]
    assert taken.before == "none"
    assert differences(description, description)[0].subject == "times"


def test_of_any_size_the_latest_is_described():
    x = mg.input("x", (None, 3))
    function = mg.comp_graph("cpu").compile([x], ops.exp(x))
    assert not function.ready
    function(np.ones((2, 3)))
    function(np.ones((5, 3)))
    assert function.ready
    assert function.describe().stages[0].added[0].results == ("float32[5,3]",)
