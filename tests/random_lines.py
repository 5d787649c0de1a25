"""Lines of random graphs: templates with blanks, which `random_graphs.py` fills in."""

import itertools

from elementwise_samples import ELEMENTWISE

from minigraph import ops
from minigraph.ops.exponential import ConstantPow

# {a} to {d} are values of one dtype that broadcast, {s} one like {a}, {i} {j} integers, {p} {q}
# bools, {n} {m} numbers; {matrix} {bias} {kernel} {same} are new parameters that fit {a}; the rest
# say something about {a}: `RandomGraph.blank` has them all.
SUMS = [
    "{a} * {b} + {c}",
    "{a} * {b} - {c}",
    "{c} - {a} * {b}",
    "-({a} * {b}) - {c}",
    "{a} * {b} + {c} * {d}",
    "{a} * {b} - {c} * {d}",
    "({a} + {b}) - ({c} - {d} * {a})",
    "{a} * {b} * {c} + {d}",
    "{a} * {b} + {c} * {d} + {a} * {c} - {b}",
    "{a} * {a} + {b} * {b}",
    "ops.square({a}) - {b} * {n}",
    "{a} * {n} + {m}",
    "({a} * {n}) * {m}",
    "({a} + {n}) - {m}",
    "ops.fma({a}, {b}, {c})",
]
IDENTITIES = [
    "{a} * 1",
    "1 * {a}",
    "{a} / 1",
    "{a} + 0",
    "0 + {a}",
    "{a} - 0",
    "{a} + (-0.0)",
    "0 - {a}",
    "{a} * 0",
    "{a} * -1",
    "{a} - {a}",
    "{a} / {a}",
    "-(-{a})",
    "{a} - (-{b})",
    "{a} + (-{b})",
    "{a} ** {power}",
    "1 / {a}",
    "{a} / {n}",
    "{a} * ops.broadcast_to(np.ones((), {a}.dtype), {a}.shape)",
    "{a} + np.zeros({a}.shape, {a}.dtype)",
    "np.ones((2, *{a}.shape), {a}.dtype) * {a}",
    "ops.abs(ops.abs({a}))",
    "ops.abs(-{a})",
    "ops.square(-{a})",
    "ops.relu(ops.relu({a}))",
    "ops.floor(ops.ceil({a}))",
    "ops.round(ops.round({a}))",
    "ops.maximum({a}, {a})",
    "ops.minimum({a}, {a})",
    "ops.clip({a}, {n}, {m})",
    "ops.exp(ops.log({a}))",
    "ops.log(ops.exp({a}))",
    "ops.log(1 + {a})",
    "ops.exp({a}) - 1",
    "ops.sqrt(ops.square({a}))",
    "ops.where({p}, {a}, {a})",
    "ops.where(np.bool_(True), {a}, {b})",
    "ops.where({a} == {a}, {b}, {n})",
    "ops.stop_gradient({a})",
    "{a}.astype('float64').astype({a}.dtype)",
    "{a}.astype('float64').astype('float32')",
]
INTEGERS = [
    "{i} + {j} * 2",
    "{i} * {j} + {i}",
    "{i} * 0",
    "{i} | 0",
    "{i} & {i}",
    "{i} ^ {j}",
    "{i} << {j}",
    "{i} >> {j}",
    "{i} >> 2",
    "{i} // {j}",
    "{i} % {j}",
    "-(-{i})",
    "~(~{i})",
    "ops.abs({i})",
    "ops.maximum({i}, {j})",
    "{i}.sum({axes})",
    "{i}.astype({number_type}) + {a}",
    "{i}.astype('int64').astype('int32')",
    "{i}.astype('uint8')",
    "ops.argmax({a}, {axis})",
    "ops.where(ops.isfinite({a}), ops.clip({a}, -99, 99), 0).astype('int32')",
]
BOOLS = [
    "{a} {relation} {b}",
    "{a} {relation} {n}",
    "{i} {relation} {j}",
    "ops.logical_not({p})",
    "ops.logical_not(ops.logical_not({p}))",
    "{p} & {q}",
    "{p} | {p}",
    "{p}.astype({number_type})",
    "{p}.astype('int32').astype('bool')",
    "ops.where({p}, {a}, {n})",
    "ops.where({p}, {a}, {b})",
    "ops.where({p}, {i}, {j})",
]
SHAPES = [
    "{a}.reshape({shape})",
    "{a}.reshape({shape}).reshape({shape2})",
    "{a}.reshape(-1).reshape({a}.shape)",
    "ops.permute_dims({a}, {order})",
    "ops.permute_dims(ops.permute_dims({a}, {order}), {order2})",
    "ops.broadcast_to({a}, {wide})",
    "ops.tanh(ops.broadcast_to({a}, {wide}))",
    "ops.broadcast_to({a}, {wide}) + {b}",
    "ops.expand_dims({a}, 0)",
    "ops.flip({a}, {axis})",
    "ops.flip(ops.flip({a}, {axis}), {axis2})",
    "{a}[{index}]",
    "{a}[{index}][{index2}]",
    "ops.pad({a}, 1)[{index}]",
    "ops.concat([{a}, {s}], {axis})",
    "ops.stack([{a}, {s}, {a}])",
    "ops.take({a}, {rows}, 0)",
]
REDUCTIONS = [
    "{a}.{reduce}({axes})",
    "{a}.{reduce}({axes}, keepdims=True)",
    "{a} - {a}.{reduce}({axes}, keepdims=True)",
    "({a} * {b}).sum({axes})",
    "({a} * {a}).mean({axes}, keepdims=True)",
    "ops.var({a}, {axes})",
    "ops.logsumexp({a}, {axes}, keepdims=True)",
    "ops.softmax({a}, {axis})",
    "ops.log_softmax({a}, {axis})",
    "ops.exp({a}) / ops.exp({a}).sum({axis}, keepdims=True)",
    "ops.layer_norm({a}, {a}.shape[-1:])",
    "({a} - {a}.mean({axis}, keepdims=True)) * ops.rsqrt(ops.var({a}, {axis}, 0, True) + 1e-5)",
    "ops.mse_loss({a}, {s})",
]
LAYERS = [
    "{a} @ {matrix}",
    "ops.relu({a} @ {matrix} + {bias})",
    "ops.tanh({bias} + {a} @ {matrix})",
    "{a} @ ops.permute_dims({a}, {swapped})",
    "ops.gelu({a})",
    "ops.silu({a})",
    "ops.softplus({a})",
    "ops.dropout({a}, 0.5)",
    "ops.batch_norm_with_statistics({a})[0]",
    "ops.relu(ops.batch_norm_with_statistics({a})[0])",
    "ops.relu(ops.batch_norm_with_statistics({a})[0] + {s})",
    "ops.batch_norm({a}, {a}.mean({not_channel}), ops.var({a}, {not_channel}))",
    "ops.conv2d({image}, {kernel}, padding=1)",
    "ops.relu(ops.conv2d({image}, {kernel}, {channels}, padding=1))",
    "ops.relu(ops.conv2d({image}, {kernel}, padding=1) + {channels}.reshape((-1, 1, 1)))",
    "ops.max_pool2d({image}, 2)",
    "ops.cross_entropy({a}, {labels})",
]
GRADIENTS = [
    "mg.grad(ops.relu(ops.batch_norm_with_statistics({a})[0]).sum(), [{x}])[0]",
    "mg.grad(ops.cross_entropy({a}, {labels}), [{x}])[0]",
    "mg.grad(ops.relu({a} @ {matrix} + {bias}).mean(), [{x}])[0]",
    "mg.grad(({a} * {b}).sum(), [{b}])[0]",
    "mg.grad(ops.tanh({a}).sum(), [{x}])[0]",
    "mg.grad({a}.mean(), [{x}])[0]",
    "mg.grad(ops.logsumexp({a}), [{x}])[0]",
]


def elementwise():
    """A line for every elementwise op of the registry that has a function."""
    lines = []
    for op in ELEMENTWISE.values():
        special = ("where", "clip", "astype")
        if hasattr(ops, op.name) and not (op.name in special or isinstance(op, ConstantPow)):
            names = (f"{{{c}}}" for c in ("pq" if op.accepts == "iub" else "abcd"))
            lines.append(f"ops.{op.name}({', '.join(itertools.islice(names, len(op.operands)))})")
    return lines


DOMAINS = {op.name: op.domain for op in ELEMENTWISE.values() if op.domain != (-2.0, 2.0)}
TEMPLATES = [
    (20, elementwise()),
    (20, SUMS),
    (12, IDENTITIES),
    (6, INTEGERS),
    (7, BOOLS),
    (10, SHAPES),
    (9, REDUCTIONS),
    (5, LAYERS),
    (4, GRADIENTS),
]
# Kinds of ops that the lines above lack; `RandomGraph` takes them where it is told to.
LOOPS = [
    "ops.scan(lambda h, v: (h * 0.5 + v, h), {a}[0], {a})[{bit}]",
    "ops.scan(lambda h, v: (ops.tanh(h + v), h * v), {a}[0], {a}, reverse=True)[{bit}]",
    "ops.scan(lambda h, v: (h + v.sum(), v - h), ops.zeros((), {a}.dtype), {a})[1]",
    "ops.scan(lambda h, v: (ops.maximum(h, v), ops.where(h > v, h, v * 2)), {a}[-1], {a})[{bit}]",
    "ops.scan(lambda h, _: (h * 0.5 + {n}, h.sum()), {a}, None, length=3)[{bit}]",
    "ops.scan(lambda h, v: (h[::-1] + v, h), {a}[0], {a})[{bit}]",
    "ops.scan(lambda h, v: ((h[1], h[0] + v), h[1]), ({a}[0], {a}[-1]), {a})[1]",
    "ops.scan(lambda h, v: (~h, ops.where(h, v, -v)), ops.zeros((), 'bool'), {a})[1]",
    "ops.scan(lambda h, v: (h, ops.scan(lambda g, w: (g + w, g * w), h, v)[1]), {a}[0, 0], {a})[1]",
    "mg.grad(ops.scan(lambda h, v: (ops.tanh(h + v), h * v), {a}[0], {a})[{bit}].sum(), [{y}])[0]",
]
PLACES = [
    "ops.take_along_axis({a}, ops.argsort({s}, {axis}), {axis})",
    "ops.sort({a}, {axis})",
    "ops.topk({a}, 1, {axis})[{bit}]",
    "ops.cumsum({a}, {axis})",
    "ops.scatter_add({a}, {axis}, ops.argsort({s}, {axis}) // 2, {s})",
    "ops.scatter({a}, {axis}, ops.argsort({s}, {axis}) // 2, {s})",
    "ops.gather({a}, {axis}, ops.argsort({s}, {axis}) // 2)",
    "ops.index_put({a}, ({rows},), {a}[-1], True)",
    "ops.index_add({a}, 0, {rows}, ops.take({s}, {rows}, 0))",
    "ops.tril({a})",
    "ops.roll({a}, 1, {axis})",
    "ops.repeat({a}, 2, {axis})",
    "ops.diff({a}, {axis})",
    "ops.pad({a}, 1, mode='reflect')",
    "ops.einsum('...i,...j->...ij', {a}, {s})",
    "mg.grad(ops.sort({a}, {axis})[..., 0].sum(), [{y}])[0]",
    "mg.grad((ops.cumsum({a}, {axis}) * {s}).sum(), [{y}])[0]",
    "mg.grad(ops.take({a}, {rows}, 0).sum(), [{y}])[0]",
    "mg.grad(({a}[{index}] * {a}[{index}]).sum(), [{y}])[0]",
]
MIXTURES = [
    "{a} + {u}",
    "{a} * {u} - {b}",
    "ops.where({u} > {a}, {u}, {a})",
    "{u}.astype({small}) * {n}",
    "{u}.astype({small}) + {a}",
    "{a}.astype({small}).sum({axes})",
    "({u} == {a}) & ({u} <= {a})",
    "ops.softmax({a}.astype({small}), {axis})",
    "mg.grad(ops.sigmoid({a}.astype({small})).astype('float32').sum(), [{y}])[0]",
    "mg.grad(ops.square(mg.grad(ops.tanh({a}).sum(), [{y}])[0]).sum(), [{y}])[0]",
    "mg.grad(ops.max({a}, {axes}).sum(), [{y}])[0]",
    "mg.grad(ops.prod({a}, {axes}).sum(), [{y}])[0]",
    "mg.grad(ops.where({p}, {a}, {b}).sum(), [{y}])[0]",
]
MORE = [(12, LOOPS), (12, PLACES), (12, MIXTURES)]
NUMBERS = ["0", "1", "-1", "2", "0.5", "3", "-1.5", "0.1"]
RARE_NUMBERS = ["-0.0", "np.inf", "-np.inf", "np.nan", "1e-20", "1e20"]
