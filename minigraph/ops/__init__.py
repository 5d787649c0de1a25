"""All ops: a class for each, with its shape rule, meaning in NumPy, gradient and C expression.

Importing this package gives nodes their operators and methods.
"""

from minigraph import errors, graph
from minigraph.ops import activation, arithmetic, comparison, exponential, reduction, trigonometric
from minigraph.ops.activation import (
    elu,
    gelu,
    hardsigmoid,
    leaky_relu,
    mish,
    prelu,
    relu6,
    silu,
    softplus,
)
from minigraph.ops.advanced_indexing import getitem, index_add, index_put
from minigraph.ops.arithmetic import divide, positive
from minigraph.ops.attention import scaled_dot_product_attention
from minigraph.ops.batch_norm import batch_norm, batch_norm_with_statistics
from minigraph.ops.collective import all_gather, all_reduce, broadcast
from minigraph.ops.comparison import clip, where
from minigraph.ops.conv import conv2d, conv_transpose2d
from minigraph.ops.creation import (
    arange,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from minigraph.ops.cumulative import cumprod, cumsum, cumulative_prod, cumulative_sum
from minigraph.ops.elementwise import astype
from minigraph.ops.exponential import pow
from minigraph.ops.fma import fma
from minigraph.ops.indexing import one_hot, take, take_along_axis
from minigraph.ops.interpolation import interpolate
from minigraph.ops.joining import (
    concat,
    diff,
    flatten,
    matrix_transpose,
    moveaxis,
    repeat,
    roll,
    split,
    stack,
    swapaxes,
    tile,
    unstack,
)
from minigraph.ops.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from minigraph.ops.matmul import einsum, linear, matmul, outer, tensordot, vecdot
from minigraph.ops.normalization import (
    cosine_similarity,
    group_norm,
    layer_norm,
    local_response_norm,
    normalize,
    rms_norm,
)
from minigraph.ops.observation import check, print
from minigraph.ops.ordering import argsort, searchsorted, sort, topk
from minigraph.ops.padding import pad
from minigraph.ops.pooling import adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d, max_pool2d
from minigraph.ops.random import dropout, random_normal, random_uniform
from minigraph.ops.reduction import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    logsumexp,
    mean,
    norm,
    std,
    var,
)
from minigraph.ops.scan import scan
from minigraph.ops.scatter import gather, scatter, scatter_add
from minigraph.ops.shape import (
    broadcast_to,
    expand_dims,
    permute_dims,
    reshape,
    squeeze,
    stop_gradient,
)
from minigraph.ops.slicing import flip, slice
from minigraph.ops.softmax import log_softmax, softmax

hardswish = activation.Hardswish.of
logaddexp = activation.Logaddexp.of
relu = activation.Relu.of
sigmoid = activation.Sigmoid.of

abs = arithmetic.Abs.of
add = arithmetic.Add.of
ceil = arithmetic.Ceil.of
copysign = arithmetic.Copysign.of
floor = arithmetic.Floor.of
floor_divide = arithmetic.FloorDivide.of
hypot = arithmetic.Hypot.of
multiply = arithmetic.Multiply.of
negative = arithmetic.Negative.of
nextafter = arithmetic.Nextafter.of
reciprocal = arithmetic.Reciprocal.of
remainder = arithmetic.Remainder.of
round = arithmetic.Round.of
rsqrt = arithmetic.Rsqrt.of
sign = arithmetic.Sign.of
sqrt = arithmetic.Sqrt.of
square = arithmetic.Square.of
subtract = arithmetic.Subtract.of
trunc = arithmetic.Trunc.of

bitwise_and = comparison.BitwiseAnd.of
bitwise_invert = comparison.BitwiseInvert.of
bitwise_left_shift = comparison.BitwiseLeftShift.of
bitwise_or = comparison.BitwiseOr.of
bitwise_right_shift = comparison.BitwiseRightShift.of
bitwise_xor = comparison.BitwiseXor.of
equal = comparison.Equal.of
greater = comparison.Greater.of
greater_equal = comparison.GreaterEqual.of
isfinite = comparison.Isfinite.of
isinf = comparison.Isinf.of
isnan = comparison.Isnan.of
less = comparison.Less.of
less_equal = comparison.LessEqual.of
logical_and = comparison.LogicalAnd.of
logical_not = comparison.LogicalNot.of
logical_or = comparison.LogicalOr.of
logical_xor = comparison.LogicalXor.of
not_equal = comparison.NotEqual.of
signbit = comparison.Signbit.of

erf = exponential.Erf.of
erfc = exponential.Erfc.of
exp = exponential.Exp.of
expm1 = exponential.Expm1.of
log = exponential.Log.of
log10 = exponential.Log10.of
log1p = exponential.Log1p.of
log2 = exponential.Log2.of

maximum = comparison.Maximum.of
minimum = comparison.Minimum.of

max = reduction.Max.of
min = reduction.Min.of
prod = reduction.Prod.of
sum = reduction.Sum.of

acos = trigonometric.Acos.of
acosh = trigonometric.Acosh.of
asin = trigonometric.Asin.of
asinh = trigonometric.Asinh.of
atan = trigonometric.Atan.of
atan2 = trigonometric.Atan2.of
atanh = trigonometric.Atanh.of
cos = trigonometric.Cos.of
cosh = trigonometric.Cosh.of
sin = trigonometric.Sin.of
sinh = trigonometric.Sinh.of
tan = trigonometric.Tan.of
tanh = trigonometric.Tanh.of

__all__ = sorted([name for name, value in globals().items() if callable(value)])
graph.bind_functions({name: globals()[name] for name in __all__})
errors.install_hints(__name__, "ops")
