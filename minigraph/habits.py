"""What people try who know PyTorch, and what serves here: for errors that say it in one line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

COMPILED_FOR = 'functions are compiled for a device, mg.comp_graph(device="cuda")'
MINIMIZE = "minimize(loss) of an optimizer gives updates, which `compile` takes"

OF_EXPRESSIONS = {
    **dict.fromkeys(
        ("item", "numpy", "tolist"),
        "an expression has no value before a call; "
        "compile it, mg.comp_graph().compile(inputs, outputs), and call that",
    ),
    **dict.fromkeys(
        ("backward", "grad", "requires_grad", "requires_grad_"),
        "mg.grad(loss, [...]) gives gradients as expressions, and optim's minimize(loss) updates",
    ),
    **dict.fromkeys(
        ("to", "cuda", "cpu", "device"),
        f"{COMPILED_FOR}; x.astype(dtype) converts elements",
    ),
    **dict.fromkeys(
        ("float", "double", "half", "bfloat16", "int", "long", "bool"),
        'x.astype("float32") converts elements, and so for other dtypes',
    ),
    "contiguous": "expressions have no layout in memory; leave it out",
    "clone": "expressions never change; leave it out",
    "data": "p.numpy() gives the value of a parameter, and p.assign(value) sets it",
    "dim": "x.ndim is the number of axes",
    "numel": "x.size is the number of elements",
}

OF_MODULES = {
    **dict.fromkeys(
        ("to", "cuda", "cpu"), f"{COMPILED_FOR}; parameters go where the functions run"
    ),
    **dict.fromkeys(
        ("float", "double", "half", "bfloat16"),
        'layers are made in a dtype, nn.Linear(4, 2, dtype="float64")',
    ),
    **dict.fromkeys(
        ("add_module", "register_module", "register_parameter"),
        "attributes register themselves; setattr(module, name, part)",
    ),
    "zero_grad": f"gradients are expressions, so there is nothing to clear; {MINIMIZE}",
}

OF_OPTIMIZERS = {
    "step": f"{MINIMIZE}: each call of the compiled function is a step",
    "zero_grad": f"gradients are expressions, so there is nothing to clear; {MINIMIZE}",
    "param_groups": "optimizer.lr is the learning rate, which takes effect at the next call",
}

OF_LAYERS = {
    "functional": "functions of expressions are in minigraph.ops: ops.relu(x)",
    "utils": "minimize(loss, clip_norm=1.0) of an optimizer clips gradients",
}

OF_OPTIM = {
    "lr_scheduler": "optim.schedules has schedules, such as cosine(adam, T_max=10), "
    "whose step() sets adam.lr",
}

OF_OPS = {
    "bmm": "ops.matmul multiplies stacks of matrices, too",
    **dict.fromkeys(("cat", "concatenate"), "ops.concat joins arrays"),
    "clamp": "ops.clip keeps elements within bounds",
    "mm": "ops.matmul multiplies matrices",
    "mul": "ops.multiply, or x * y",
    "permute": "ops.permute_dims changes the order of axes",
    "sub": "ops.subtract, or x - y",
    "transpose": "ops.swapaxes(x, 0, 1) exchanges two axes, ops.permute_dims orders all",
    "unsqueeze": "ops.expand_dims adds an axis",
    "view": "ops.reshape gives another shape",
}

OF_PACKAGE = {
    **dict.fromkeys(
        ("tensor", "from_numpy", "as_tensor"),
        "functions take NumPy arrays, mg.input(name, shape) stands for one, "
        "and mg.Parameter(value) is trained",
    ),
    **dict.fromkeys(
        ("no_grad", "inference_mode", "enable_grad"),
        "gradients are only computed where mg.grad or minimize(loss) asks for them; leave it out",
    ),
    "autograd": "mg.grad(loss, [...]) gives gradients as expressions",
    "compile": "cg = mg.comp_graph(); cg.compile(inputs, outputs, updates) compiles a function",
    "cuda": COMPILED_FOR,
    "manual_seed": 'nn.manual_seed(seed) is for layers, cg.set_option("seed", seed) for functions',
}

OF_DEVICES = {
    "gpu": 'an NVIDIA GPU is "cuda"',
    "mps": "Apple's GPUs are not supported",
    "xpu": "Intel's GPUs are not supported",
}


def of_module(module: str, habits: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which answers to names that the module has not."""

    def find(name: str) -> NoReturn:
        raise missing(module, name, habits, sys.modules[module])

    return find


def missing(what: str, name: str, habits: Mapping[str, str], owner: object) -> AttributeError:
    """Return the error for an attribute that `what` has not, with what serves instead."""
    instead = habits.get(name)
    text = f"{what} has no {name}: {instead}" if instead else f"{what} has no attribute {name!r}"
    if not instead and not name.startswith("_"):
        nearest = difflib.get_close_matches(name, object.__dir__(owner), n=1, cutoff=0.75)
        text += f"; the nearest is {nearest[0]}" if nearest else ""
    return AttributeError(text, name=name, obj=owner)
