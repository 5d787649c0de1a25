"""Calling a compiled function: arguments, results, errors, threads, memory, random numbers."""

import copy
import itertools
import linecache
import os
import pickle
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from at_once import in_threads
from new_process import python

import minigraph as mg
from minigraph import ops

DEVICES = ["cpu", "reference"]


@pytest.fixture(params=DEVICES)
def cg(request):
    return mg.comp_graph(request.param)


def real(*size, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def user_line(error):
    """The line of this file that a message, which has to be one line, points to."""
    message = str(error.value)
    assert "\n" not in message
    (number,) = set(re.findall(rf"{re.escape(__file__)}:(\d+)", message))
    return linecache.getline(__file__, int(number)).strip()


def difference(cg):
    """A function of three inputs in which none can stand for another."""
    a, b, c = (mg.input(name, (2,)) for name in "abc")
    return cg.compile([a, b, c], a + b * 10 + c * 100)


def increment(cg, shape, dtype="float32"):
    x = mg.input("x", shape, dtype)
    return cg.compile([x], x + np.ones((), x.dtype))


# ---------------------------------------------------------------- which argument is which


def test_arguments_go_by_position_or_by_name(cg):
    function = difference(cg)
    one, two, three = np.full(2, 1), np.full(2, 2), np.full(2, 3)
    for result in (
        function(one, two, three),
        function(a=one, b=two, c=three),
        function(c=three, a=one, b=two),
        function(one, two, c=three),
        function(one, c=three, b=two),
    ):
        np.testing.assert_array_equal(result, [321, 321])


def test_a_missing_argument_is_an_error_that_names_it(cg):
    function = difference(cg)
    with pytest.raises(mg.GraphError, match=r"no value is given for input b, c\b") as error:
        function([1, 2])
    assert user_line(error) == "function([1, 2])"
    with pytest.raises(mg.GraphError, match=r"no value is given for input b\b"):
        function(a=[1, 2], c=[1, 2])


def test_an_unknown_name_is_an_error_that_lists_the_inputs(cg):
    function = difference(cg)
    with pytest.raises(mg.GraphError, match=r"no input 'd'; the inputs: a, b, c\b") as error:
        function([1, 2], [1, 2], d=[1, 2])
    assert user_line(error).startswith("function(")


def test_one_argument_too_many_is_an_error(cg):
    function = difference(cg)
    with pytest.raises(mg.GraphError, match=r"takes 3 inputs \(a, b, c\), got 4") as error:
        function(*[[1, 2]] * 4)
    assert user_line(error).startswith("function(")
    with pytest.raises(mg.GraphError, match="takes 0 inputs"):
        cg.compile([], [np.ones(3)])(1)


def test_an_argument_that_is_given_twice_is_an_error(cg):
    function = difference(cg)
    with pytest.raises(mg.GraphError, match="input 'a' is given twice") as error:
        function([1, 2], a=[1, 2], b=[1, 2], c=[1, 2])
    assert user_line(error).startswith("function(")


def test_an_input_may_be_called_self(cg):
    x = mg.input("self", (2,))
    np.testing.assert_array_equal(cg.compile([x], x + 1)(self=[1, 2]), [2, 3])


# ---------------------------------------------------------------- what an argument may be


@pytest.mark.parametrize("shape", [(), (2,), (3, 1), (2, 3, 1), (0, 3), (6,)])
def test_another_shape_is_a_shape_error_that_names_both(cg, shape):
    function = increment(cg, (2, 3))
    with pytest.raises(mg.ShapeError, match=r"input x takes shape \(2, 3\)") as error:
        function(np.ones(shape))
    assert f"got {shape}" in str(error.value)
    assert user_line(error) == "function(np.ones(shape))"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("int64", "float32"),
        ("uint8", "float32"),
        ("bool", "float32"),
        ("float32", "float64"),
        ("float32", "float16"),
        ("float32", "bfloat16"),
        ("int64", "int8"),
        ("bool", "int64"),
        ("uint8", "int32"),
        ("uint64", "int32"),
    ],
)
def test_an_argument_is_cast_by_the_same_kind_rule(cg, given, taken):
    given = ml_dtypes.bfloat16 if given == "bfloat16" else given
    y = increment(cg, (3,), taken)(np.array([0, 1, 1], given))
    assert y.dtype == mg.input("x", (3,), taken).dtype
    np.testing.assert_array_equal(y.astype("float64"), [1, 2, 2])


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("float32", "int32"),
        ("float32", "bool"),
        ("int64", "uint8"),
        ("int8", "bool"),
        ("complex64", "float32"),
        ("datetime64[s]", "float32"),
        ("U3", "float32"),
        ("O", "float32"),
    ],
)
def test_an_argument_of_another_kind_is_a_dtype_error(cg, given, taken):
    x = mg.input("x", (3,), taken)
    function = cg.compile([x], x)
    with pytest.raises(mg.DTypeError, match=rf"input x takes {taken}\[3\]") as error:
        function(np.zeros(3, given))
    assert user_line(error) == "function(np.zeros(3, given))"


@pytest.mark.parametrize(
    "value", ["text", None, {}, [[1], [1, 2]], ..., mg.input("y", (2, 3))], ids=repr
)
def test_what_is_no_array_is_a_dtype_error(cg, value):
    function = increment(cg, (2, 3))
    with pytest.raises(mg.DTypeError, match="input x takes") as error:
        function(value)
    assert user_line(error) == "function(value)"


def misaligned(x):
    memory = np.empty(x.nbytes + 1, np.uint8)
    shifted = memory[1:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    assert not shifted.flags.aligned
    return shifted


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "contiguous": lambda x: x.copy(),
    "Fortran order": np.asfortranarray,
    "every second element": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda x: x.T.copy().T,
    "part of a larger array": lambda x: np.pad(x, 3)[3:-3, 3:-3],
    "read only": read_only,
    "big endian": lambda x: x.astype(">f4"),
    "little endian": lambda x: x.astype("<f4"),
    "misaligned": misaligned,
    "float64": lambda x: x.astype(np.float64),
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(map(tuple, x.tolist())),
    "list of arrays": list,
    "masked array": lambda x: np.ma.masked_array(x),
    "memoryview": memoryview,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_argument_may_lie_in_memory_in_any_way(cg, layout):
    value = real(4, 5)
    function = increment(cg, (4, 5))
    given = LAYOUTS[layout](value)
    np.testing.assert_array_equal(function(given), value + 1)
    np.testing.assert_array_equal(np.asarray(given, np.float32), value)


def test_a_broadcast_argument_is_read_right(cg):
    given = np.broadcast_to(real(5), (4, 5))
    np.testing.assert_array_equal(increment(cg, (4, 5))(given), given + 1)


@pytest.mark.parametrize("value", [2.0, 2, True, np.float32(2), np.int8(2), np.array(2.0)])
def test_an_argument_without_axes_is_a_number(cg, value):
    y = increment(cg, ())(value)
    assert y.shape == ()
    assert y == value + 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_an_argument_may_be_empty(cg, shape):
    x = mg.input("x", shape)
    for given in (np.empty(shape), np.empty(shape, "int64")):
        y, total = cg.compile([x], [x + 1, x.sum()])(given)
        assert y.shape == shape
        assert total == 0


def test_an_empty_list_has_no_kind(cg):
    x = mg.input("x", (0,), "int32")
    assert cg.compile([x], x + 1)([]).dtype == np.int32


class WithArray:
    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value, dtype)


class WithDLPack:
    def __init__(self, value):
        self.value = value

    def __dlpack__(self, **how):
        return self.value.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()


class WithInterface:
    def __init__(self, value):
        self.__array_interface__ = value.__array_interface__
        self.value = value


@pytest.mark.parametrize("kind", [WithArray, WithDLPack, WithInterface])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "float64"])
def test_an_argument_may_be_anything_that_turns_into_an_array(cg, kind, layout):
    value = real(4, 5)
    given = kind(LAYOUTS[layout](value))
    np.testing.assert_array_equal(increment(cg, (4, 5))(given), value + 1)
    with pytest.raises(mg.ShapeError):
        increment(cg, (5, 4))(given)
    with pytest.raises(mg.DTypeError):
        increment(cg, (4, 5), "int32")(given)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_an_argument_may_be_a_torch_tensor(cg, dtype, torch):
    value = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = torch.from_numpy(value)
    np.testing.assert_array_equal(increment(cg, (2, 3))(tensor), value + np.float32(1))
    np.testing.assert_array_equal(increment(cg, (3, 2))(tensor.T), value.T + np.float32(1))
    assert (tensor == torch.from_numpy(value)).all()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda torch: torch.ones(3, requires_grad=True), id="requires_grad"),
        pytest.param(lambda torch: torch.ones(3, device="meta"), id="meta"),
    ],
)
def test_a_tensor_that_has_no_array_is_a_dtype_error(cg, make, torch):
    with pytest.raises(mg.DTypeError, match="input x takes"):
        increment(cg, (3,))(make(torch))


# ---------------------------------------------------------------- whose memory a result is


def test_changing_an_argument_after_the_call_changes_nothing(cg):
    x, w = mg.input("x", (3,)), mg.Parameter(np.zeros(3, "float32"), "w")
    step = cg.compile([x], [x, x[::-1], x + 1], {w: x})
    given = np.array([1, 2, 3], np.float32)
    results = step(given)
    given[...] = 0
    np.testing.assert_array_equal(results, [[1, 2, 3], [3, 2, 1], [2, 3, 4]])
    np.testing.assert_array_equal(w.numpy(), [1, 2, 3])


def test_a_call_changes_no_argument(cg):
    x = mg.input("x", (64,))
    given = real(64)
    before = given.copy()
    y = x
    for _ in range(5):
        y = ops.exp(-y) + y * x
    cg.compile([x], [y, y.sum(), x.T])(given)
    np.testing.assert_array_equal(given, before)


def by_torch(y):
    return pytest.importorskip("torch").from_numpy(y)


def strided(y):
    return np.lib.stride_tricks.as_strided(y, (2, 2), (y.itemsize, y.itemsize))


WAYS_TO_KEEP = {
    "itself": lambda y: y,
    "slice": lambda y: y[500:],
    "view of a view": lambda y: y[::2][::2].T,
    "other dtype": lambda y: y.view(np.uint32),
    "subclass": lambda y: np.ma.masked_array(y),
    "strides": strided,
    "memoryview": memoryview,
    "buffer": lambda y: np.frombuffer(y, np.float32),
    "DLPack": np.from_dlpack,
    "torch": by_torch,
}


@pytest.mark.parametrize("way", WAYS_TO_KEEP)
def test_a_result_is_not_overwritten_while_any_part_of_it_is_kept(cg, way):
    x = mg.input("x", (1000,))
    function = cg.compile([x], [x + 1, x * 2])
    kept = []
    for i in range(20):
        first, second = function(np.full(1000, i, np.float32))
        if i % 3 == 0:
            kept.append((WAYS_TO_KEEP[way](first), i + 1))
        elif i % 3 == 1:
            kept.append((WAYS_TO_KEEP[way](second), i * 2))
        del first, second
    for part, value in kept:
        assert set(np.asarray(part).view(np.float32).ravel().tolist()) == {value}


@pytest.mark.parametrize("seed", range(5))
def test_results_are_not_overwritten_in_whatever_order_they_are_dropped(cg, seed):
    rng = np.random.default_rng(seed)
    x = mg.input("x", (50,))
    function = cg.compile([x], [x + 1, (x * 2).reshape(5, 10), x.sum(), x[::2], x + 1])
    kept = []
    for i in range(100):
        results = function(np.full(50, i, np.float32))
        expected = [i + 1, 2 * i, 50 * i, i, i + 1]
        kept.extend(zip(results, expected, strict=True))
        del results
        for at in sorted(rng.choice(len(kept), len(kept) // 2, replace=False))[::-1]:
            del kept[at]
        for y, value in kept:
            assert (y == value).all()


def test_a_result_may_be_the_next_argument(cg):
    x = mg.input("x", (1000,))
    function = cg.compile([x], [x[::-1] + 1, x])
    y = np.arange(1000, dtype=np.float32)
    expected = y.copy()
    for _ in range(10):
        y, before = function(y)
        np.testing.assert_array_equal(before, expected)
        expected = expected[::-1] + 1
        np.testing.assert_array_equal(y, expected)
        y = function(function(y)[0])[0]
        expected = (expected[::-1] + 1)[::-1] + 1
        np.testing.assert_array_equal(y, expected)


def test_writing_to_a_result_changes_no_later_one(cg):
    x = mg.input("x", (1000,))
    function = cg.compile([x], [x + 1, x])
    for i in range(5):
        for y, value in zip(function(np.full(1000, i, np.float32)), (i + 1, i), strict=True):
            assert (y == value).all()
            y[...] = np.nan


def test_results_of_two_functions_share_no_memory(cg):
    x = mg.input("x", (1000,))
    one, other = cg.compile([x], x + 1), cg.compile([x], x + 1)
    results = [f(np.full(1000, i)) for i, f in enumerate([one, other] * 5)]
    for i, y in enumerate(results):
        np.testing.assert_array_equal(y, np.full(1000, i + 1))
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(results, 2))


def test_a_result_outlives_its_function(cg):
    y = increment(cg, (1000,))(np.ones(1000))
    np.testing.assert_array_equal(y, np.full(1000, 2))


# ---------------------------------------------------------------- parameters


def test_functions_that_share_a_parameter_see_its_current_value(cg):
    x, w = mg.input("x", (3,)), mg.Parameter([1.0, 2.0, 3.0], "w", dtype="float32")
    add = cg.compile([x], [], {w: w + x})
    double = cg.compile([], w, {w: w * 2})
    read = cg.compile([], w + 0)
    other = mg.comp_graph("reference").compile([], w * 1)

    def assert_is(expected):
        for value in (w.numpy(), read(), other()):
            np.testing.assert_array_equal(value, expected)

    assert_is([1, 2, 3])
    add([1, 1, 1])
    assert_is([2, 3, 4])
    np.testing.assert_array_equal(double(), [2, 3, 4])
    assert_is([4, 6, 8])
    w.assign([0, 0, 1])
    assert_is([0, 0, 1])
    add([1, 0, 0])
    assert_is([1, 0, 1])


def test_what_a_parameter_was_is_kept_by_who_asked(cg):
    w = mg.Parameter(np.zeros(3, "float32"), "w")
    before = w.numpy()
    step = cg.compile([], [], {w: w + 1})
    step()
    np.testing.assert_array_equal(before, [0, 0, 0])
    w.numpy()[...] = 9
    np.testing.assert_array_equal(w.numpy(), [1, 1, 1])


# ---------------------------------------------------------------- a call that fails


def classifier(cg):
    x, labels = mg.input("x", (4, 3)), mg.input("labels", (4,), "int64")
    w, count = mg.Parameter(np.eye(3, dtype="float32"), "w"), mg.Parameter(0, "count")
    loss = ops.cross_entropy(x @ w, labels)
    (dw,) = mg.grad(loss, [w])
    return cg.compile([x, labels], loss, {w: w - dw, count: count + 1}), [w, count]


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, -1, 1, 2], [2**40, 0, 0, 0]])
def test_a_label_out_of_range_names_op_and_line_and_changes_nothing(cg, labels):
    step, parameters = classifier(cg)
    x = real(4, 3)
    step(x, [0, 1, 2, 0])
    before = [p.numpy() for p in parameters]
    with pytest.raises(mg.GraphError, match=r"label .* is not in 0 \.\.\. 2") as error:
        step(x, labels)
    assert str(error.value).startswith(("one_hot", "cross_entropy"))
    assert "input labels: int64[4]" in str(error.value)
    assert user_line(error).startswith("loss = ops.cross_entropy")
    for p, value in zip(parameters, before, strict=True):
        np.testing.assert_array_equal(p.numpy(), value)
    assert step.calls == 1


def test_a_function_works_after_a_call_that_failed(cg):
    (step, parameters), (other, expected) = classifier(cg), classifier(cg)
    x = real(4, 3)
    for wrong in ({"labels": [0, 1, 2, 9]}, {"labels": [0.5] * 4}, {"labels": [0]}, {}):
        with pytest.raises(mg.GraphError):
            step(x, **wrong)
        np.testing.assert_array_equal(step(x, [0, 1, 2, 0]), other(x, [0, 1, 2, 0]))
    for p, q in zip(parameters, expected, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_a_call_that_failed_draws_no_random_numbers(cg):
    x, labels = mg.input("x", (64, 3)), mg.input("labels", (64,), "int64")
    mask = ops.dropout(x)
    function = cg.compile([x, labels], [mask, ops.cross_entropy(x, labels)])
    first, second = (function(np.ones((64, 3)), [0] * 64)[0] for _ in range(2))
    function.calls = 1
    with pytest.raises(mg.GraphError):
        function(np.ones((64, 3)), [3] * 64)
    np.testing.assert_array_equal(function(np.ones((64, 3)), [0] * 64)[0], second)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, "one", [1, 2]])
def test_a_seed_is_a_number_of_64_bits(cg, seed):
    function = cg.compile([], ops.random_uniform((3,)))
    with pytest.raises(mg.GraphError, match=r"seed is .*; it takes an integer from 0"):
        function.seed = seed
    function.seed = 2**64 - 1
    assert function().shape == (3,)


# ---------------------------------------------------------------- threads, processes, memory


def product(cg, size=32):
    """A function with steps of every sort: product, elementwise, reduction, softmax."""
    x = mg.input("x", (size, size))
    y = ops.softmax(x @ x.T)
    return cg.compile([x], [ops.exp(y) * x, y.sum(0)])


def check_repeatedly(function, expected, seed, times=100):
    x = real(32, 32, seed=seed)
    for _ in range(times):
        for y, wanted in zip(function(x), expected[seed], strict=True):
            np.testing.assert_array_equal(y, wanted)


def test_two_functions_run_in_two_threads_at_once(cg):
    one, other = product(cg), product(cg)
    expected = {seed: one(real(32, 32, seed=seed)) for seed in (1, 2)}
    in_threads(
        lambda: check_repeatedly(one, expected, 1), lambda: check_repeatedly(other, expected, 2)
    )


def test_one_function_may_be_called_from_several_threads(cg):
    function = product(cg)
    seeds = range(4)
    expected = {seed: function(real(32, 32, seed=seed)) for seed in seeds}
    in_threads(
        *(lambda seed=seed: check_repeatedly(function, expected, seed, 50) for seed in seeds)
    )
    assert function.calls == 4 + 4 * 50


def test_two_functions_that_share_a_parameter_apply_all_updates(cg):
    count = mg.Parameter(np.zeros(100_000, "int32"), "count")
    steps = [cg.compile([], [], {count: count + 1}) for _ in range(2)]
    in_threads(*(lambda step=step: [step() for _ in range(200)] for step in steps))
    np.testing.assert_array_equal(count.numpy(), 400)


def test_no_thread_sees_a_value_half_old_and_half_new(cg):
    w = mg.Parameter(np.zeros(100_000, "int32"), "w")
    step, look = cg.compile([], [], {w: w + 1}), cg.compile([], w * 1)

    def check(value):
        assert value.min() == value.max()

    def assign():
        for _ in range(50):
            w.assign(np.full(100_000, 1000, "int32"))

    in_threads(
        lambda: [step() for _ in range(100)],
        lambda: [check(look()) for _ in range(100)],
        lambda: [check(w.numpy()) for _ in range(100)],
        assign,
    )


def test_updates_from_several_threads_are_all_applied(cg):
    count = mg.Parameter(np.zeros(1000, "int64"), "count")
    step = cg.compile([], [], {count: count + 1})
    in_threads(*[lambda: [step() for _ in range(100)]] * 4)
    np.testing.assert_array_equal(count.numpy(), np.full(1000, 400))


def test_graphs_are_compiled_in_two_threads_at_once(cg):
    def compile_and_run(seed):
        x = mg.input("x", (8, 8))
        value = real(8, 8, seed=seed)
        for i in range(20):
            function = cg.compile([x], (x + i).sum(1))
            np.testing.assert_allclose(function(value), (value + i).sum(1), rtol=1e-4, atol=1e-4)

    in_threads(*(lambda seed=seed: compile_and_run(seed) for seed in range(4)))


def resident():
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="memory is read from /proc"
)


@needs_proc
def test_calls_do_not_grow_the_process(cg):
    x, w = mg.input("x", (64, 64)), mg.Parameter(np.eye(64, dtype="float32"), "w")
    step = cg.compile([x], [(x @ w).sum(), ops.softmax(x)], {w: w + x * 0})
    given = real(64, 64)
    for _ in range(100):
        step(given)
    before = resident()
    for _ in range(2000):
        step(given)
    assert resident() - before < 2 << 20  # a result that stayed would be 32 MiB


@needs_proc
def test_functions_that_are_gone_leave_no_memory(cg):
    x = mg.input("x", (512, 1024))

    def use():
        cg.compile([x], ops.exp(x + 1).sum())(np.zeros((512, 1024), "float32"))

    for _ in range(5):
        use()
    before = resident()
    for _ in range(30):
        use()
    assert resident() - before < 16 << 20  # arenas that stayed would be 120 MiB


def test_a_function_takes_the_memory_that_was_made_ready_while_it_was_compiled():
    x = mg.input("x", (1 << 20,))
    y = ops.tanh(ops.tanh(x) + x)
    function = mg.comp_graph("reference", {"graph_opt_level": 0}).compile([x], y + ops.tanh(y))
    needed = function.report().memory.arena_bytes
    assert function.arena.nbytes == needed < function.arena.base.nbytes
    limited = {"graph_opt_level": 0, "graph_opt.memory_limit": needed}
    again = mg.comp_graph("reference", limited).compile([x], y + ops.tanh(y))
    assert again.report().memory.arena_bytes == needed


FORK = """
import os, sys
import numpy as np
import minigraph as mg
{before}
child = os.fork()
x = mg.input("x", (64, 256))
w = mg.Parameter(np.ones((256, 256), np.float32))
function = mg.comp_graph("cpu").compile([x], (x @ w).sum())
assert function(np.ones((64, 256))) == 64 * 256 * 256
if not child:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def fork(before=""):
    script = FORK.format(before=before)
    python("-c", script)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_may_be_forked_after_the_import():
    fork()


# ---------------------------------------------------------------- random numbers


def dropout(device, seed=0, size=4096, p=0.5):
    x = mg.input("x", (size,))
    graph = mg.comp_graph(device, options={"seed": seed})
    return graph.compile([x], ops.dropout(x, p))


def masks(function, count=1, size=4096):
    return np.array([function(np.ones(size)) for _ in range(count)])


def test_the_same_seed_gives_the_same_masks_on_every_device_and_in_every_function():
    first = masks(dropout("reference", seed=3), 3)
    for device in DEVICES:
        np.testing.assert_array_equal(masks(dropout(device, seed=3), 3), first)


@pytest.mark.parametrize("draw", [ops.random_uniform, ops.random_normal])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_seed_gives_the_same_numbers_on_every_device(draw, dtype):
    one, other = (mg.comp_graph(d).compile([], draw((1000,), dtype=dtype)) for d in DEVICES)
    for _ in range(2):
        # Logarithm and cosine may differ in the last bit.
        np.testing.assert_allclose(one(), other(), rtol=1e-5, atol=1e-6)


def test_every_call_draws_anew(cg):
    function = dropout(cg.device)
    drawn = masks(function, 5)
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(drawn, 2))


def test_setting_calls_replays_a_call(cg):
    function = dropout(cg.device)
    drawn = masks(function, 5)
    assert function.calls == 5
    for k in (3, 0, 4):
        function.calls = k
        np.testing.assert_array_equal(masks(function)[0], drawn[k])
        assert function.calls == k + 1
    resumed = dropout(cg.device)
    resumed.calls = 3
    np.testing.assert_array_equal(masks(resumed, 2), drawn[3:])


@pytest.mark.parametrize("seeds", [(0, 1), (1, 2), (1, 2**32 + 1), (0, 2**63), (5, 2**64 - 1)])
def test_another_seed_draws_other_numbers(cg, seeds):
    one, other = (masks(dropout(cg.device, seed))[0] for seed in seeds)
    assert not np.array_equal(one, other)


def test_two_random_ops_of_a_function_draw_different_numbers(cg):
    a, b = cg.compile([], [ops.random_uniform((1000,)), ops.random_uniform((1000,))])()
    assert not np.array_equal(a, b)


def test_a_random_expression_that_is_read_twice_is_drawn_once(cg):
    u = ops.random_uniform((1000,))
    a, b, difference = cg.compile([], [u, u + 0, u - u])()
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(difference, np.zeros(1000))


def test_other_work_in_a_function_does_not_change_what_is_drawn(cg):
    x = mg.input("x", (1000,))
    alone = cg.compile([x], ops.dropout(x))(np.ones(1000))
    beside = cg.compile([x], [ops.dropout(x), x + 1, (x * 2).sum()])(np.ones(1000))[0]
    np.testing.assert_array_equal(alone, beside)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_and_scales_as_many_as_it_should(cg, p):
    n = 1 << 16
    y = masks(dropout(cg.device, size=n, p=p), size=n)[0]
    kept = y != 0
    assert abs(kept.mean() - (1 - p)) < 5 * np.sqrt(p * (1 - p) / n)
    np.testing.assert_allclose(y[kept], 1 / (1 - p), rtol=1e-6)
    neighbours = np.mean(kept[1:] & kept[:-1])
    assert abs(neighbours - (1 - p) ** 2) < 5 / np.sqrt(n)


@pytest.mark.parametrize(("p", "expected"), [(0, 1), (1, 0)])
def test_dropout_of_nothing_and_of_everything(cg, p, expected):
    np.testing.assert_array_equal(masks(dropout(cg.device, p=p))[0], np.full(4096, expected))


def test_the_gradient_of_dropout_has_its_mask(cg):
    x = mg.input("x", (1000,))
    y = ops.dropout(x, 0.3)
    (dx,) = mg.grad(y.sum(), [x])
    kept, gradient = cg.compile([x], [y, dx])(np.ones(1000))
    np.testing.assert_array_equal(kept, gradient)


def test_random_numbers_have_the_distribution_they_were_asked_for(cg):
    n = 1 << 16
    uniform, normal = cg.compile(
        [], [ops.random_uniform((n,), -2, 3), ops.random_normal((n,), 1, 2)]
    )()
    assert uniform.min() >= -2
    assert uniform.max() < 3
    assert abs(uniform.mean() - 0.5) < 5 * 5 / np.sqrt(12 * n)
    assert abs(normal.mean() - 1) < 5 * 2 / np.sqrt(n)
    assert abs(normal.std() - 2) < 5 * 2 / np.sqrt(2 * n)
    assert abs(np.mean(np.abs(normal - 1) < 2) - 0.6827) < 0.01


# ---------------------------------------------------------------- what a function tells


def layer(size=3, *, op=ops.relu, bias=1.0, dtype="float32"):
    x = mg.input("x", (4, size), dtype)
    w = mg.Parameter(np.eye(size, dtype=dtype), "w")
    return [x], [op(x @ w + bias).sum()], {w: w * 2}


def test_report_counts_the_ops_that_are_executed(cg):
    report = cg.compile(*layer()).report()
    assert report.ops["matmul"] == report.ops["relu"] == report.ops["sum"] == 1
    assert [name for name, _, _ in report.steps].count("matmul") == 1
    assert report.syncs == 0


def test_report_has_the_seconds_of_each_stage(cg):
    seconds = cg.compile(*layer()).report().seconds
    assert seconds
    assert all(isinstance(stage, str) and value >= 0 for stage, value in seconds.items())


def test_report_prints_as_five_lines(cg):
    function = cg.compile(*layer())
    page = str(function.report())
    assert len(page.splitlines()) == 5
    assert cg.device in page
    assert function.report().fingerprint[-7:] in page


def test_fingerprint_is_40_hex_digits_that_stay(cg):
    one, other = (cg.compile(*layer()) for _ in range(2))
    fingerprint = one.report().fingerprint
    assert re.fullmatch(r"[0-9a-f]{40}", fingerprint)
    one(np.ones((4, 3)))
    assert one.report().fingerprint == fingerprint == other.report().fingerprint


def test_fingerprint_tells_functions_apart(cg):
    graphs = [
        layer(),
        layer(4),
        layer(op=ops.tanh),
        layer(bias=2.0),
        layer(dtype="float64"),
        (*layer()[:2], {}),
    ]
    found = [cg.compile(*graph).report().fingerprint for graph in graphs]
    assert len(set(found)) == len(found)
    other = {"cpu": "reference", "reference": "cpu"}[cg.device]
    assert mg.comp_graph(other).compile(*layer()).report().fingerprint not in found
    cg.set_option("graph_opt_level", 0)
    assert cg.compile(*layer()).report().fingerprint not in found


def test_fingerprint_does_not_depend_on_the_values_of_parameters_and_inputs(cg):
    inputs, outputs, updates = layer()
    before = cg.compile(inputs, outputs, updates).report().fingerprint
    next(iter(updates)).assign(np.zeros((3, 3)))
    assert cg.compile(inputs, outputs, updates).report().fingerprint == before


def test_fingerprint_is_the_same_in_another_process():
    script = "import function.test_function as t; print(t.fingerprint_of_layer())"
    printed, _ = python("-c", script, PYTHONHASHSEED="7")
    assert printed.strip() == fingerprint_of_layer()


def fingerprint_of_layer():
    return mg.comp_graph("cpu", {"seed": 1}).compile(*layer()).report().fingerprint


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_function_cannot_be_copied(duplicate):
    x = mg.input("x", (2,))
    function = mg.comp_graph("reference").compile([x], x * 2)
    with pytest.raises(mg.GraphError, match="compile another one"):
        duplicate(function)


@pytest.mark.parametrize("calls", [-1, 0.5, "3", None, 2**64])
def test_calls_is_a_count(calls):
    x = mg.input("x", (2,))
    function = mg.comp_graph("reference").compile([x], x * 2)
    with pytest.raises(mg.GraphError, match="calls is"):
        function.calls = calls
