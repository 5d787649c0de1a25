"""All ops.  Importing this package gives nodes their operators and methods."""

from minigraph.graph import Node
from minigraph.ops.activation import gelu, leaky_relu, logaddexp, relu, sigmoid, silu, softplus
from minigraph.ops.arithmetic import (
    abs,
    add,
    ceil,
    clip,
    divide,
    floor,
    floor_divide,
    fma,
    maximum,
    minimum,
    multiply,
    negative,
    positive,
    pow,
    reciprocal,
    remainder,
    round,
    rsqrt,
    sign,
    sqrt,
    square,
    subtract,
    trunc,
)
from minigraph.ops.cast import astype
from minigraph.ops.comparison import (
    bitwise_and,
    bitwise_invert,
    bitwise_or,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    where,
)
from minigraph.ops.conv import conv2d
from minigraph.ops.exponential import erf, exp, expm1, log, log1p, log2, log10
from minigraph.ops.indexing import one_hot, take
from minigraph.ops.loss import cross_entropy, mse_loss
from minigraph.ops.matmul import linear, matmul
from minigraph.ops.normalization import (
    batch_norm,
    batch_norm_with_statistics,
    layer_norm,
    local_response_norm,
    log_softmax,
    softmax,
)
from minigraph.ops.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from minigraph.ops.random import dropout, random_normal, random_uniform
from minigraph.ops.reduction import argmax, logsumexp, max, mean, min, prod, sum, var
from minigraph.ops.shape import (
    broadcast_to,
    concat,
    expand_dims,
    flip,
    getitem,
    pad,
    permute_dims,
    reshape,
    slice,
    split,
    squeeze,
    stack,
    stop_gradient,
)
from minigraph.ops.trigonometric import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    cosh,
    sin,
    sinh,
    tan,
    tanh,
)

Node.operators.update(
    {
        fn.__name__: fn
        for fn in (
            abs,
            add,
            astype,
            bitwise_and,
            bitwise_invert,
            bitwise_or,
            bitwise_xor,
            divide,
            equal,
            floor_divide,
            getitem,
            greater,
            greater_equal,
            less,
            less_equal,
            matmul,
            max,
            mean,
            min,
            multiply,
            negative,
            not_equal,
            permute_dims,
            pow,
            prod,
            remainder,
            reshape,
            subtract,
            sum,
        )
    }
)
