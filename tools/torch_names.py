"""How PyTorch's functions are called here: other names, other arguments.

A function of `torch`, `torch.nn.functional` or `torch.linalg` whose name is also one of
`minigraph.ops`, or a method of expressions, takes the same arguments, but for the names in
ARGUMENTS.  TRANSLATED has the others: a name of `minigraph.ops`, or a function with the parameters
of PyTorch's that exist here.
"""

from minigraph import ops
from minigraph.graph import Node


class Refused(Exception):
    """PyTorch does this, and nothing here does; the text says what."""


ARGUMENTS = {"dim": "axis", "keepdim": "keepdims", "dims": "axis", "weights": "weight"}

# Of equal name, but another function: one bool for two whole tensors; random numbers; of matrices.
OTHERS = {"equal", "nn.functional.dropout", "linalg.norm"}

NAN_IN_TORCH = {"pow"}  # where the derivatives of 0 ** y exist, PyTorch's second ones are NaN
# In float64 PyTorch multiplies by 1 / 6 in float32, and adds 1e-12 to denominators.
COARSE_IN_TORCH = {
    "nn.functional.hardsigmoid",
    "nn.functional.binary_cross_entropy",
    "nn.BCELoss",
}
FLAT = {"logaddexp"}  # derivatives that come close to 0 are exact to what 1 is rounded to


def binary(name):
    """Return a function of x and y, where y is scaled by `alpha`."""
    function = getattr(ops, name)
    return lambda x, y, *, alpha=1: function(x, y if alpha == 1 else ops.multiply(y, alpha))


def divide(x, y, *, rounding_mode=None):
    if rounding_mode == "floor":
        return ops.floor_divide(x, y)
    if rounding_mode == "trunc":
        raise Refused("div has no rounding_mode trunc")
    return ops.divide(x, y)


def extreme(name, position):
    """Return max or min: of all, along an axis (with its position), or of two."""

    def function(x, dim=None, keepdim=False, other=None):
        other = dim if isinstance(dim, Node) else other
        if other is not None:
            return getattr(ops, f"{name}imum")(x, other)
        if dim is None:
            return getattr(ops, name)(x)
        return getattr(ops, name)(x, dim, keepdim), getattr(ops, position)(x, dim, keepdim)

    return function


def spread(name):
    """Return var or std, whose third argument in torch is `unbiased`."""
    function = getattr(ops, name)

    def call(x, dim=None, unbiased=None, keepdim=False, *, correction=None):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None else int(unbiased)
        return function(x, None if dim == () or dim == [] else dim, correction, keepdim)

    return call


def pad(x, pad, mode="constant", value=0):
    mode = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return ops.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, value or 0, mode)


def reduction(name):
    """Return a reduction over `dim`, of which torch takes no axes for all of them."""
    function = getattr(ops, name)

    def call(x, dim=None, keepdim=False, *, dtype=None):
        x = x if dtype is None else ops.astype(x, dtype)
        y = function(x, None if dim == () or dim == [] else dim, keepdims=keepdim)
        return y if dtype is None else ops.astype(y, dtype)

    return call


def truth(name):
    """Return all or any, which torch gives as uint8 for uint8."""
    function = reduction(name)

    def call(x, dim=None, keepdim=False):
        y = function(x, dim, keepdim)
        return ops.astype(y, "uint8") if x.dtype == "uint8" else y

    return call


def split(x, split_size, dim=0):
    sizes = split_size
    if isinstance(split_size, int):
        sizes = [split_size] * (x.shape[dim] // split_size)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return ops.split(x, [end for end in ends if end < x.shape[dim]], dim)


def batch_norm(
    x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    return ops.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    if dropout_p:
        raise Refused("dropout draws other random numbers")
    return ops.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale
    )


def softmax(name):
    function = getattr(ops, name)

    def call(x, dim=-1, dtype=None):
        return function(x if dtype is None else ops.astype(x, dtype), dim)

    return call


def embedding(x, weight, padding_idx=None):
    if padding_idx is not None:
        raise Refused("take has no padding_idx")
    return ops.take(weight, x, 0)


def max_pool2d(
    x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    if dilation not in (1, (1, 1)) or return_indices:
        raise Refused("max_pool2d has no dilation and no indices")
    return ops.max_pool2d(x, kernel_size, stride, padding, ceil_mode)


def linspace(start, end, steps, dtype):
    if isinstance(start, Node) or isinstance(end, Node):
        raise Refused("linspace takes no expressions")
    if "float" not in dtype:
        start, end = int(start), int(end)  # as torch does
        if min(start, end) < 0:
            raise Refused("linspace rounds integers down, as NumPy")
    return ops.linspace(start, end, steps, dtype)


def arange(start, end=None, step=1, *, dtype=None):
    if dtype and "float" not in dtype and any(v and v != int(v) for v in (start, end, step)):
        raise Refused("torch truncates some fractions first")
    return ops.arange(start, end, step, dtype)


def diff(x, n=1, dim=-1, prepend=None, append=None):
    parts = [part for part in (prepend, x, append) if part is not None and (n or part is x)]
    return ops.diff(ops.concat(parts, dim) if len(parts) > 1 else x, dim, n)


def sort(x, dim=-1, descending=False, *, stable=False):
    _distinct(x, stable)
    return ops.sort(x, dim, descending), ops.argsort(x, dim, descending)


def topk(x, k, dim=-1, largest=True, sorted=True):
    _distinct(x, False)
    return ops.topk(x, k, dim, largest, sorted)


def _distinct(x, stable):
    """Refuse what may have equals, where PyTorch leaves their order open."""
    if not stable and x.dtype not in ("float32", "float64"):
        raise Refused("equals come in any order")


def index_add(x, dim, index, source, *, alpha=1):
    if x.dtype == "bool":
        raise Refused("a factor makes integers of bools")
    return ops.index_add(x, dim, index, source, alpha=alpha)


def sliced(x, dim=0, start=None, end=None, step=1):
    return x[(slice(None),) * dim + (slice(start, end, step),)]


def to(dtype):
    return lambda x: ops.astype(x, dtype)


def matrices(x, y):
    return ops.matmul(x, y)


TRANSLATED = {
    "H": lambda x: ops.swapaxes(x, 0, 1),
    "T": lambda x: x.T,
    "t": lambda x: x.T,
    "mH": lambda x: ops.matrix_transpose(x),
    "mT": "matrix_transpose",
    "__radd__": lambda x, y: y + x,
    "__rand__": lambda x, y: y & x,
    "__rdiv__": lambda x, y: y / x,
    "__rmatmul__": lambda x, y: y @ x,
    "__rmod__": lambda x, y: y % x,
    "__rmul__": lambda x, y: y * x,
    "__ror__": lambda x, y: y | x,
    "__rpow__": lambda x, y: y**x,
    "__rsub__": lambda x, y: y - x,
    "__rxor__": lambda x, y: y ^ x,
    "__getitem__": lambda x, index: x[index],
    "add": binary("add"),
    "sub": binary("subtract"),
    "all": truth("all"),
    "amax": reduction("max"),
    "amin": reduction("min"),
    "any": truth("any"),
    "arange": arange,
    "argsort": lambda *args, **kwargs: sort(*args, **kwargs)[1],
    "bfloat16": to("bfloat16"),
    "bitwise_not": "bitwise_invert",
    "bmm": matrices,
    "bool": to("bool"),
    "byte": to("uint8"),
    "cat": lambda tensors, dim=0: ops.concat(tensors, dim),
    "char": to("int8"),
    "clamp": lambda x, min=None, max=None: ops.clip(x, min, max),
    "clamp_max": lambda x, max: ops.clip(x, None, max),
    "clamp_min": lambda x, min: ops.clip(x, min),
    "clone": lambda x: x,
    "count_nonzero": lambda x, dim=None: reduction("count_nonzero")(x, dim),
    "diff": diff,
    "div": divide,
    "dot": matrices,
    "double": to("float64"),
    "einsum": lambda operands, equation: ops.einsum(equation, *operands),
    "eq": "equal",
    "expand": lambda x, *shape: ops.broadcast_to(x, shape[0] if len(shape) == 1 else shape),
    "flatten": lambda x, start_dim=0, end_dim=-1: ops.flatten(x, start_dim, end_dim),
    "flip": lambda x, dims: ops.flip(x, dims),
    "float": to("float32"),
    "ge": "greater_equal",
    "gt": "greater",
    "half": to("float16"),
    "index_select": lambda x, dim, index: ops.take(x, index, dim),
    "index_add": index_add,
    "inner": lambda x, y: ops.tensordot(x, y, ([x.ndim - 1], [y.ndim - 1])),
    "int": to("int32"),
    "le": "less_equal",
    "linalg.vecdot": lambda x, y, dim=-1: ops.vecdot(x, y, dim if dim < 0 else dim - x.ndim),
    "linalg.vector_norm": lambda x, ord=2, dim=None, keepdim=False: ops.norm(x, ord, dim, keepdim),
    "linspace": linspace,
    "log_softmax": softmax("log_softmax"),
    "long": to("int64"),
    "lt": "less",
    "max": extreme("max", "argmax"),
    "mean": reduction("mean"),
    "min": extreme("min", "argmin"),
    "mm": matrices,
    "movedim": "moveaxis",
    "msort": lambda x: ops.sort(x, 0),
    "mul": "multiply",
    "mv": matrices,
    "ne": "not_equal",
    "neg": "negative",
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.embedding": embedding,
    "nn.functional.max_pool2d": max_pool2d,
    "nn.functional.pad": pad,
    "nn.functional.scaled_dot_product_attention": attention,
    "norm": lambda x, p=2, dim=None, keepdim=False: ops.norm(x, p, dim, keepdim),
    "permute": "permute_dims",
    "prod": reduction("prod"),
    "ravel": "flatten",
    "repeat": "tile",
    "repeat_interleave": lambda x, repeats, dim=None: ops.repeat(x, repeats, dim),
    "rsub": lambda x, y, *, alpha=1: binary("subtract")(y, x, alpha=alpha),
    "select": lambda x, dim, index: x[(slice(None),) * (dim % x.ndim) + (index,)],
    "short": to("int16"),
    "sgn": "sign",
    "slice": sliced,
    "softmax": softmax("softmax"),
    "sort": sort,
    "split": split,
    "split_with_sizes": split,
    "std": spread("std"),
    "sum": reduction("sum"),
    "take_along_dim": lambda x, indices, dim=None: ops.take_along_axis(x, indices, dim),
    "tensordot": lambda x, y, dims=2: ops.tensordot(x, y, dims),
    "topk": topk,
    "transpose": "swapaxes",
    "tril": lambda x, diagonal=0: ops.tril(x, diagonal),
    "triu": lambda x, diagonal=0: ops.triu(x, diagonal),
    "true_divide": "divide",
    "unbind": lambda x, dim=0: ops.unstack(x, dim),
    "unsqueeze": "expand_dims",
    "var": spread("var"),
    "view": "reshape",
    "where": lambda x, condition, y: ops.where(condition, x, y),
}
