"""Arrays of NumPy that stand in for CuPy's: what they are asked for is noted."""

import itertools

import numpy as np

from minigraph.autotune.candidate import Workbench

COMPILED = set()  # what CuPy would compile kernels for: functions, dtypes and numbers of axes


class Foreign(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that follows NumPy's protocols, as CuPy's do, and is never taken for one of its."""

    def __init__(self, array):
        self.array = array

    def __array__(self, *_, **__):
        raise TypeError("an array of the device came to the host")

    def __array_ufunc__(self, ufunc, method, *xs, **named):
        return called(ufunc.__name__, getattr(ufunc, method), *xs, **named)

    def __array_function__(self, function, types, xs, named):
        return called(function.__name__, function, *xs, **named)

    def __getitem__(self, at):
        return Foreign(self.array[at])

    def __setitem__(self, at, x):
        called("set", np.copyto, Foreign(self.array[at]), x)

    def __getattr__(self, name):
        if name.startswith("__array_"):  # NumPy's ways to the memory, without __array__
            raise AttributeError(name)
        attribute = getattr(self.array, name)
        if not callable(attribute):
            return foreign(attribute)
        return lambda *xs, **named: called(name, lambda _, *xs: attribute(*xs, **named), self, *xs)

    def __bool__(self):
        return bool(self.array)

    def __float__(self):
        return float(self.array)

    __int__ = __float__

    def __len__(self):
        return len(self.array)


def called(name, function, *xs, **named):
    """Call a function of NumPy's; note it unless it takes no kernel of CuPy's own."""
    operands = own(xs)
    result = function(*operands, **own(named))
    arrays = [x for x in operands if isinstance(x, np.ndarray)]
    is_view = isinstance(result, np.ndarray) and any(np.may_share_memory(result, x) for x in arrays)
    if not is_view and arrays[0].size and name not in ("view", "zeros_like"):
        name = {"reshape": "copy", "astype": "copy"}.get(name, name)
        axes = max([0, *map(axes_of, arrays)]) * (name != "matmul")  # which is cuBLAS's
        dtypes = dict.fromkeys(x.dtype for x in (*arrays, result) if isinstance(x, np.ndarray))
        COMPILED.add((name, axes, *dtypes))
    return foreign(result)


def axes_of(x):
    """The axes of an array that CuPy's kernel has: neighbours that lie as one are one."""
    axes = [(n, step) for n, step in zip(x.shape, x.strides, strict=True) if n > 1]
    apart = sum(step != n * inner for (_, step), (n, inner) in itertools.pairwise(axes))
    return 0 if x.flags.c_contiguous else apart + 1


def foreign(x):
    return Foreign(x) if isinstance(x, np.ndarray) else x


def own(x):
    if isinstance(x, Foreign):
        return x.array
    if isinstance(x, dict):
        return {name: own(value) for name, value in x.items()}
    return type(x)(map(own, x)) if isinstance(x, tuple | list) else x


class ForeignBench(Workbench):
    chunk = 1 << 20

    def empty(self, nbytes):
        return Foreign(super().empty(nbytes))

    def upload(self, array):
        return Foreign(array)

    def runner(self, kernel):
        return lambda *arrays: kernel.run(*own(arrays))
