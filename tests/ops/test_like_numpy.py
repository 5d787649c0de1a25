"""Public functions compute what NumPy's of the same names do."""

import numpy as np
import pytest
from op_values import F32, evaluate
from samples import integer, real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

ARRAYS = {
    "x": real(2, 3, 4),
    "y": real(2, 3, 4, low=0.5, seed=1),
    "m": real(3, 1, seed=2),
    "v": real(4, seed=3),
    "w": real(3, seed=4),
    "a": real(2, 4, 3, seed=5),
    "s": real(seed=6),
    "e": real(0, 3),
    "one": real(1, 3, 1),
    "i8": integer(2, 3, low=-100, high=100).astype(np.int8),
    "u8": integer(2, 3, low=1, high=200).astype(np.uint8),
    "i": integer(2, 3, low=-9, high=9),
    "b": integer(2, 3, high=2).astype(bool),
    "tie": np.array([[1.0, 3, 3], [np.nan, 5, 1]]),
}

CALLS = """
sum(x); sum(x, axis=-1); sum(x, axis=(0, -1)); sum(x, axis=()); sum(x, axis=1, keepdims=True)
sum(x, keepdims=True); sum(s); sum(e); sum(e, axis=0); sum(i8); sum(u8, axis=0); sum(b, axis=-1)
prod(x, axis=(1, 2), keepdims=True); prod(e); prod(i8, axis=1); prod(b)
max(x); max(x, axis=(-3, 2)); max(tie, axis=1); max(e, axis=1); max(b, axis=0)
min(x, axis=-2, keepdims=True); min(u8)
mean(x); mean(x, axis=(0, 2), keepdims=True); mean(i8, axis=0); mean(b)
var(x); var(x, axis=-1, correction=1); var(x, axis=(0, 1), correction=0.5, keepdims=True); var(i)
argmax(x); argmax(x, axis=-1); argmax(x, axis=1, keepdims=True); argmax(x, keepdims=True)
argmax(tie, axis=1)
x.sum(1); x.mean((0, 1), keepdims=True); x.max(-1); x.min(); x.prod(axis=2)
x + m; x - v; m * v; s / x; x + 1; 2 - x; 3 * x; 1 / y; x // y; x % y; 7 // y; 7 % y; i // 3; i % -3
i // 0 * 0; y ** 2; y ** x; y ** -0.5; 2 ** x; i ** 2; -x; +x
abs(x)
x < v; x <= 0; 0 < x; x >= m; x == x; x != v; i & 3; i | i8; 5 ^ i; ~i; ~b; b & (i > 0); b | False
u8 + 1; u8 * 2.0; i8 / u8; b + b; b * 2; v @ v; x @ a; x @ v; w @ x; m @ reshape(v, (1, 4))
x[0] @ a[0]
stack([x, x]) @ a
x @ a[:1]; i8 @ u8.T
e.T @ e
b @ b.T; x[:, :, :0] @ v[:0]; x[:, :, :0] @ a[0, :0]; x[:0] @ a[0]; x[:, :0] @ a[0]; v[:0] @ e.T[:0]
matmul(x, a)
x[0]; x[-1, 1]; x[..., -2]; x[:, None, 1:, ::2]; x[::-1]; x[:, ::-2, 3:0:-2]; x[1, ..., None, None]
x[()]; x[...]; x[5:]; x[:, 2:1]; x[-99:99, -2:]; x[None]; s[None, ...]; s[()]; e[:, 1]; e[::-1]
x.T; x.reshape(4, 6); x.reshape((2, -1)); x.reshape(-1); x.transpose(); x.transpose(1, 2, 0)
x.transpose((0, 2, 1)); x.astype("float32"); i8.astype("bool")
reshape(x, (3, -1, 2)); reshape(s, (1, 1)); reshape(e, (-1, 3)); reshape(e, (3, 0))
permute_dims(x, (2, 0, 1)); permute_dims(x, (-1, 0, -2))
broadcast_to(m, (2, 3, 4)); broadcast_to(s, (2, 2)); broadcast_to(e, (2, 0, 3))
concat([x, y]); concat([x, y], axis=-1); concat([x, v], axis=None); concat([x])
concat([i8, i], axis=1); concat([u8, b]); concat([e, i]); concat(x)
stack([x, y]); stack([x, y], axis=-1); stack([x, y], axis=2); stack([s, s]); stack(x)
split(x, 3, axis=1); split(x, [1, 3], axis=-1); split(x, [3, 1], axis=2); split(x, [], axis=0)
split(x, [9], axis=1); split(x, 2)
pad(x, 1); pad(v, (1, 2)); pad(x, ((1, 0), (0, 2), (1, 1)), constant_values=3)
pad(x, ((2,), (0,), (1,))); pad(e, 1); pad(i8, 1, constant_values=-3)
flip(x); flip(x, axis=1); flip(x, axis=(0, -1))
take(x, i % 3, axis=1); take(x, i % 2, axis=-3); take(v, i % 4); take(x, i % 24)
take(x, -1, axis=-1)
take_along_axis(i8, i % 3, axis=1); take_along_axis(i8, -(i % 2) - 1, axis=0)
take_along_axis(i8, (i % 3)[:, :1], axis=-1)
take(v, (i % 4).astype("uint64"))
squeeze(one); squeeze(one, axis=0); squeeze(one, axis=(0, -1))
expand_dims(x, axis=-1); expand_dims(x, axis=(0, 2)); expand_dims(s, axis=0)
where(b, i, 0); where(b, 1.5, i); where(x > 0, x, v)
clip(x, -1, 1); clip(x, min=0); clip(x, max=m); clip(x, v, m); clip(x, 2, 1); clip(i8, -5, 5)
clip(i8, min=0); clip(u8, 0, 100)
maximum(x, v)
minimum(tie, 2)
logaddexp(x, v)
atan2(x, y); atan2(0.0, x)
copysign(x, y - 1); copysign(i, -0.5)
hypot(x, y); hypot(i, 2)
nextafter(x, y)
signbit(x - 1)
bitwise_left_shift(i, 3); bitwise_left_shift(u8, 1)
bitwise_right_shift(i8, 2)
i << 2; i >> 1; 1 << u8 // 40
sign(x)
round(x * 10); round(2.5 + i)
floor(i8)
trunc(x)
ceil(x)
isnan(tie)
isinf(tie / 0)
isfinite(tie)
logical_and(x, b[0, 0])
logical_not(i)
logical_xor(i, b)
positive(i8)
square(i8)
reciprocal(y)
zeros((2, 3), "float32")
ones(3, "int8")
full((2, 3), i8 == 0); full((2, 3), 7); full(2, 1, dtype="bool")
zeros_like(i8)
ones_like(x, dtype="bool")
full_like(x, v)
arange(5); arange(2, 11, 3); arange(5, 1, -2); arange(0, 1, 0.25, dtype="float64")
arange(3, dtype="uint8")
linspace(-1, 2, 7, dtype="float64"); linspace(0, 1, 4, endpoint=False, dtype="float64")
linspace(0, 1, 0, dtype="float64"); linspace(-1, 1, 4, dtype="int64")
eye(3, dtype="float64"); eye(2, 4, k=1, dtype="int64"); eye(4, 2, k=-9, dtype="bool")
tril(x); tril(x, k=-1); tril(b)
triu(x, k=1); triu(i8, k=-1)
tile(x, 2); tile(v, (2, 1, 3)); tile(x, (2, 0)); tile(s, 3)
repeat(x, 2); repeat(x, 3, axis=1); repeat(x, 0, axis=-1)
roll(x, 2); roll(x, -1, axis=1); roll(x, (1, -5), axis=(0, 2)); roll(x, 1, axis=(0, 1))
roll(e, 1, axis=0)
moveaxis(x, 0, -1); moveaxis(x, (0, 2), (1, 0))
swapaxes(x, 0, -1)
matrix_transpose(x)
unstack(x); unstack(x, axis=1); unstack(e)
vecdot(x, v); vecdot(x, y, axis=-2)
outer(v, w); outer(w, i[0])
tensordot(x, a, axes=0); tensordot(x, a, axes=((1, 2), (2, 1))); tensordot(x, v, axes=1)
tensordot(x, y, axes=3); tensordot(x, w, axes=([1], [0])); tensordot(x, w, axes=(1, 0))
einsum("bij,bjk->bik", x, a); einsum("bij,bjk->ki", x, a); einsum("bij,bjk", x, a)
einsum("bij->jb", x); einsum("bij->", x); einsum("ba", x[0]); einsum("i,j->ij", v, w)
einsum("i,i", v, v); einsum("bij,bij->b", x, y); einsum("bij,j,i->b", x, v, w)
einsum("...j,j->...", x, v); einsum("...ij,...jk", x, a[:1]); einsum("i...->...", x)
einsum("b...j, b...j -> b...", x, y); einsum("...,...->...", x, v); einsum("ij,jk->ik", i, i.T)
einsum("ii", a[0, :3]); einsum("bii->b", a[:, :3]); einsum("ibi->bi", a[:, :2, :2])
std(x); std(x, axis=(0, 2), correction=1, keepdims=True); std(i)
any(x > 1.5, axis=1); any(b); any(e, axis=0)
all(x > -1.9, axis=-1, keepdims=True); all(i); all(e); all(tie)
count_nonzero(i); count_nonzero(b, axis=0); count_nonzero(x, axis=(0, 1), keepdims=True)
argmin(x); argmin(i8, axis=1); argmin(u8, axis=0, keepdims=True); argmin(b, axis=1)
argmin(tie, axis=0)
diff(x); diff(x, axis=0); diff(x, axis=1, n=2); diff(v, n=9); diff(b); diff(i8)
cumsum(x); cumsum(x, axis=1); cumsum(i8, axis=0); cumsum(u8); cumsum(b, axis=-1)
cumsum(x, axis=0, dtype="float32"); cumsum(e, axis=0); cumsum(tie, axis=1)
cumprod(x, axis=-1); cumprod(i8, axis=1); cumprod(tie)
cumulative_sum(v); cumulative_sum(x, axis=1, include_initial=True)
cumulative_prod(x, axis=2); cumulative_prod(i, axis=0, include_initial=True)
exp(i8); exp(i)
sqrt(u8)
log(u8)
cos(b)
"""


@pytest.mark.parametrize("calls", CALLS.strip().splitlines())
def test_functions_agree_with_numpy(calls):
    for call in calls.split("; "):
        assert_agrees(call)


def assert_agrees(call):
    used = {name: x for name, x in ARRAYS.items() if name in compile(call, "", "eval").co_names}
    inputs = {name: mg.input(name, x.shape, x.dtype) for name, x in used.items()}
    result = eval(call, {**vars(ops), **inputs})
    single = not isinstance(result, list)
    nodes = (result,) if single else tuple(result)
    result = Graph(tuple(inputs.values()), nodes)(*used.values())
    with np.errstate(all="ignore"):
        want = eval(call, {**vars(np), **used})
    want = [want] if single else want
    assert len(result) == len(want)
    for node, g, w in zip(nodes, result, map(np.asarray, want), strict=True):
        assert (node.shape, node.dtype) == (g.shape, g.dtype) == (w.shape, w.dtype), call
        np.testing.assert_allclose(g, w, rtol=1e-13, atol=1e-13, err_msg=call)


def test_one_hot_is_a_row_of_the_identity():
    labels = np.array([[2, 0], [1, 1]])
    result = evaluate(lambda i: ops.one_hot(i, 3), labels)
    np.testing.assert_array_equal(result, np.eye(3)[labels])
    assert result.dtype == np.int64
    assert ops.one_hot(labels, 3, "float32").dtype == F32


def test_slice_cuts_the_leading_axes():
    x = ARRAYS["x"]
    for args, want in [
        ((1, 2), x[1:2]),
        ((0, -1), x[0:-1]),
        (((0, 1), (2, 3)), x[0:2, 1:3]),
        ((0, 4, (1, 2, 3)), x[0:4:1, 0:4:2, 0:4:3]),
        (((1, 2, 3), 0, -1), x[1:0:-1, 2:0:-1, 3:0:-1]),
    ]:
        np.testing.assert_array_equal(evaluate(lambda x, args=args: ops.slice(x, *args), x), want)
