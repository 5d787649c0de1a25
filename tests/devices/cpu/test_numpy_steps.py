"""What says that NumPy computes something that native kernels could."""

import warnings

import pytest
from needs import needs_both

import minigraph as mg
from minigraph import errors, ops
from minigraph.graph import Op

pytestmark = needs_both


def product(n, dtype, device="cpu"):
    x = mg.input("x", (n, n), dtype)
    return mg.comp_graph(device).compile([x], ops.relu(x @ x))


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_a_large_product_that_numpy_computes_warns_once(dtype):
    with pytest.warns(mg.MinigraphWarning, match=f"no matmul of {dtype}: NumPy computes") as said:
        product(200, dtype)
        product(201, dtype)
        y = mg.input("y", (4, 200, 200), dtype)
        mg.comp_graph("cpu").compile([y], y @ y)
    assert len(said) == 1


def test_the_warning_says_where_the_type_comes_from():
    x, steps = mg.input("x", (200, 200)), ops.arange(200)
    waves = ops.sin(steps / 200)
    y = ops.relu(x + waves) @ x
    with pytest.warns(mg.MinigraphWarning, match="float64 begins with .*, made at ") as said:
        mg.comp_graph("cpu").compile([x], y)
    line = waves.source.line
    assert f"made at {__file__}:{line}; report().numpy" in str(said[0].message)


def test_small_work_and_other_devices_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        product(20, "float64")
        product(200, "float64", "reference")
        product(200, "float32")


def test_the_report_says_which_steps_numpy_computes_and_why():
    report = product(20, "float64").report()
    (line,) = report.numpy
    assert line.startswith("matmul+relu: float64[20,20] (oneDNN has no matmul of float64), made at")
    assert report.section("numpy") == line
    assert 'section("numpy"): 1 of 1 steps' in str(report)
    assert product(20, "float32").report().numpy == []
    assert product(20, "float64", "reference").report().numpy == []


def test_an_op_that_has_no_kernel_at_all_is_named_and_does_not_warn(monkeypatch):
    monkeypatch.setattr(Op, "registry", {})

    class Rotated(Op):
        """An op of a user's program, for which nobody wrote C."""

        def infer(self, x):
            return x

    x = mg.input("x", (2, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = mg.comp_graph("cpu").compile([x], Rotated()(x)).report()
    assert any("there is no kernel of" in line for line in report.numpy)
