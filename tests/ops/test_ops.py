"""Properties that every op has, checked for every op in the registry."""

import dataclasses
import inspect
import itertools
from collections import Counter

import numpy as np
import pytest
from elementwise_samples import (
    ELEMENTWISE,
    accepts,
    is_abstract,
    is_random,
    operand_dtypes,
    operands,
    registered,
)
from op_values import as_tuple, every_sample, forward, specs
from samples import SAMPLES, STRUCTURAL

from minigraph import DTypeError, ops
from minigraph.graph import DTYPES, FLOATS, Expanded, Op, Spec, builder
from minigraph.ops.elementwise import kind
from minigraph.ops.shape import Identity

# ---------------------------------------------------------------- the registry


def test_every_op_has_a_sample():
    final = {name for name, cls in registered().items() if not is_abstract(cls)}
    assert {type(op).__name__ for op, _ in SAMPLES.values()} == final


def test_no_two_ops_share_a_name():
    def below(cls):
        return {cls}.union(*map(below, cls.__subclasses__()))

    ours = {cls for cls in below(Op) - {Op} if cls.__module__.startswith("minigraph.")}
    assert ours <= set(Op.registry.values())
    names = Counter(cls.name for cls in registered().values())
    del names["pow"]  # of any exponents, and of one that is known
    assert set(names.values()) == {1}


def test_classes_are_abstract_or_final():
    for cls in registered().values():
        if is_abstract(cls):
            given = cls in (Expanded, Identity)  # by `expand`, or as the input
            own = "forward" in vars(cls) and not given
            assert not own, f"{cls.__name__} has subclasses and a meaning"
        else:
            assert cls.__dataclass_params__.frozen, f"{cls.__name__} is not a frozen dataclass"
            assert cls.forward is not Op.forward, f"{cls.__name__} has no meaning"


def test_equal_ops_have_equal_hashes_and_text():
    again = dict(SAMPLES)
    for name, (op, _) in SAMPLES.items():
        copy = dataclasses.replace(op)
        assert str(copy) == str(op)
        if op.name != "constant":  # which is told apart by identity
            assert copy == again[name][0]
            assert hash(copy) == hash(op)


# ---------------------------------------------------------------- shapes and dtypes


@every_sample
def test_forward_makes_arrays_of_its_own_as_infer_says(op, xs):
    before = [x.copy() for x in xs]
    ys = forward(op, xs)
    assert as_tuple(op.infer(*specs(xs))) == specs(ys)
    for x, old in zip(xs, before, strict=True):
        np.testing.assert_array_equal(x, old)
    if not op.is_view and op.name not in ("copy", "constant"):
        assert not any(np.may_share_memory(x, y) for x in xs for y in ys if x.size and y.size)


def refuses(op, dtype):
    """Whether an elementwise op says that it has no such operands."""
    try:
        op.infer(*(Spec((), d) for d in operand_dtypes(op, dtype)))
    except DTypeError:
        return True
    return False


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_infer_agrees_with_forward(dtype):
    for op in ELEMENTWISE.values():
        if is_random(op):
            continue
        if not accepts(op, dtype):
            assert refuses(op, dtype), op
        else:
            xs = operands(op, dtype)
            assert (op.infer(*specs(xs)),) == specs(forward(op, xs)), op


@pytest.mark.parametrize("dtype", FLOATS)
def test_structural_infer_agrees_with_forward(dtype):
    for name, (op, given) in STRUCTURAL.items():
        xs = [x.astype(dtype) if kind(x.dtype) == "f" else x for x in given]
        assert as_tuple(op.infer(*specs(xs))) == specs(forward(op, xs)), name


def test_samples_lie_on_both_sides_of_every_kink():
    for name, op in ELEMENTWISE.items():
        x = SAMPLES[name][1][0]
        ends = [-np.inf, *op.kinks, np.inf]
        for low, high in itertools.pairwise(ends):
            assert np.any((low < x) & (x < high)), f"{name} has no sample between {low} and {high}"


def test_functions_show_their_operands_and_meaning():
    assert str(inspect.signature(ops.hardswish)) == "(x: 'Operand', /)"
    assert str(inspect.signature(ops.atan2)) == "(y: 'Operand', x: 'Operand', /)"
    assert str(inspect.signature(ops.less)) == "(x: 'Operand', y: 'Operand', /)"


# ---------------------------------------------------------------- errors


PUBLIC = {
    name: fn
    for name, fn in vars(ops).items()
    if inspect.isfunction(fn) and not name.startswith("_")
}


def test_every_public_function_is_a_builder_with_a_docstring():
    code = builder(lambda: None).__code__
    for name, fn in PUBLIC.items():
        assert fn.__code__ is code, f"{name} is no builder"
        assert fn.__name__ == name
        assert fn.__doc__, f"{name} has no docstring"
