"""The state that calls of layers change."""

import numpy as np
import pytest
from small_nets import IMAGES, Net, compiled, result

import minigraph as mg
from minigraph import nn
from minigraph.errors import ShapeError


def norms(width=4, **kwargs):
    return nn.Sequential(nn.BatchNorm2d(width, **kwargs), nn.BatchNorm2d(width, **kwargs))


def test_evaluation_and_batch_norms_without_statistics_change_nothing():
    x = mg.input("x", IMAGES.shape)
    net = Net()
    net.eval()(x)
    assert net.updates() == {}
    layer = nn.BatchNorm2d(4, track_running_stats=False)
    layer(x)
    assert layer.updates() == {}
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_a_call_in_evaluation_leaves_the_updates_of_the_training_call_before():
    x = mg.input("x", IMAGES.shape)
    net = norms()
    net(x)
    net.eval()(x)
    assert set(net.updates()) == set(net.buffers())


def test_several_calls_of_one_graph_count_one_after_the_other(torch):
    theirs, ours = torch.nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    x = mg.input("x", IMAGES.shape)
    ours(x)
    ours(x * 2 + 1)
    compiled([x], [], ours.updates())(IMAGES)
    theirs(torch.from_numpy(IMAGES))
    theirs(torch.from_numpy(IMAGES * 2 + 1))
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], value, rtol=1e-6, err_msg=name)


def test_asked_again_updates_are_the_same_so_that_a_graph_can_be_compiled_at_each_level():
    net = Net()
    net(mg.input("x", IMAGES.shape))
    first, again = net.updates(), net.updates()
    assert len(first) == 6
    assert list(first) == list(again)
    assert all(first[p] is again[p] for p in first)


def test_the_first_call_after_updates_begins_a_new_graph():
    net = Net()
    graphs = []
    for batch in (4, 2):
        x = mg.input("x", (batch, *IMAGES.shape[1:]))
        graphs.append(compiled([x], net(x), net.updates()))  # would lack an input if they mixed
    for batch, step in zip((4, 2), graphs, strict=True):
        step(IMAGES[:batch])
    assert net.layer1[0].bn1.num_batches_tracked.numpy() == 2
    net.eval()(x)
    assert net.updates() == {}


def test_parts_that_the_new_graph_does_not_call_have_no_updates_in_it():
    x = mg.input("x", IMAGES.shape)
    net = norms()
    net(x)
    net.updates()
    net[1](x)
    assert set(net.updates()) == set(net[1].buffers())


def test_asking_a_part_for_its_updates_takes_nothing_from_the_whole():
    net = norms()
    net(mg.input("x", IMAGES.shape))
    assert set(net[0].updates()) == set(net[0].buffers())
    assert set(net.updates()) == set(net.buffers())


def test_a_call_that_raises_changes_nothing():
    net = nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 9 * 10, 2))
    good, bad = (mg.input("x", (2, 4, 9, width)) for width in (10, 11))
    y = net(good)
    first = net.updates()
    for _ in range(2):
        with pytest.raises(ShapeError):
            net(bad)
        again = net.updates()
        assert all(first[p] is again[p] for p in first)
    y = net(good)
    with pytest.raises(ShapeError):
        net(bad)
    compiled([good], y, net.updates())(IMAGES[:2])
    assert net[0].num_batches_tracked.numpy() == 1


def test_users_modules_record_what_a_call_changes():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = nn.Buffer(np.float32(0))

        def forward(self, x):
            self.update(self.calls, self.updated(self.calls) + 1)
            return x

    counter = Counter()
    x = mg.input("x", ())
    y = counter(counter(x))
    compiled([x], y, counter.updates())(0.0)
    assert counter.calls.numpy() == 2


def test_parameters_and_buffers_are_made_by_the_names_that_torch_has():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(np.ones(3, "float32"))
            self.seen = nn.Buffer(np.int64(0))

    net = Scaled()
    assert [(name, type(p)) for name, p in net.named_parameters()] == [("scale", mg.Parameter)]
    assert list(net.state_dict()) == ["scale", "seen"]


def test_dropout_obeys_training():
    layer = nn.Dropout(0.5)
    values = result(layer, np.ones((100, 100), np.float32))
    assert set(np.unique(values)) == {0.0, 2.0}
    assert abs(values.mean() - 1) < 0.1
    assert np.array_equal(result(layer.eval()), IMAGES)


def test_train_and_eval_reach_every_module_and_return_the_module():
    net = Net()
    assert net.eval() is net
    assert not any(m.training for m in net.modules())
    assert net.train() is net
    assert all(m.training for m in net.modules())
