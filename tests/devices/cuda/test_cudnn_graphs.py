"""cuDNN's graphs say what the nodes are: what, of which shapes, lying how, and what follows.

No device is needed: a graph can be built and looked at without one.
"""

import math

import pytest

pytest.importorskip("cudnn")
pytest.importorskip("cupy")

from heavy_nodes import convolution, laid_out

from minigraph.devices.cuda import cudnn_kernel
from minigraph.devices.cuda.channels import SINGLE_PIXELS, Blocks
from minigraph.devices.cuda.cudnn_graph import TYPES, Tensor, build, channels_last, contiguous
from minigraph.devices.cuda.kernels import Exactness
from minigraph.graph import Spec, input
from minigraph.ops.activation import Activated, Relu
from minigraph.ops.conv import Conv2d
from minigraph.ops.trigonometric import Tanh

# ---------------------------------------------------------------- convolutions

# As in AlexNet and ResNets: channels in and out, height, window, stride, padding.
SHAPES = (
    *((3, 64, 224, 11, 4, 2), (64, 192, 27, 5, 1, 2), (192, 384, 13, 3, 1, 1)),
    *((3, 64, 224, 7, 2, 3), (64, 128, 56, 3, 2, 1), (64, 256, 56, 1, 1, 0)),
    (256, 512, 56, 1, 2, 0),
)


def described(graph, uid):
    tensor = graph.find_tensor(uid)
    assert not tensor.is_virtual
    return Tensor(
        tuple(tensor.dim),
        tuple(tensor.stride),
        next(name for name, kind in TYPES.items() if kind == tensor.data_type),
    )


def operands_of(problem):
    """Return the inputs and the result as a problem's graph describes them."""
    graph = build(problem)
    return [described(graph, uid) for uid in range(1, len(problem.inputs) + 2)]


def operations_of(graph):
    return [node.params.get("mode") or node.node_type.name for node in graph.nodes]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
def test_a_convolution_is_a_graph_in_each_direction(last, dtype):
    step = {"float32": 4, "bfloat16": 8}[dtype]
    lie = channels_last if last else contiguous
    for shape in SHAPES:
        for node in convolution(128, *shape, dtype):
            kind, roles = cudnn_kernel.KINDS[type(node.op)], cudnn_kernel.ROLES[type(node.op)]
            plain = [*(x.shape for x in node.inputs), node.shape]
            lanes = [s[1] if last and r != "w" else 1 for s, r in zip(plain, roles, strict=True)]
            laid = laid_out(node, tuple(lanes)) if last else node
            way = {way.label: way for way in cudnn_kernel.ways(laid, Exactness())}[""]
            graph = build(way.problem)
            assert operations_of(graph) == [f"CONV_{kind.upper()}"]
            wide = [
                lie(
                    (s[0], math.ceil(s[1] / step) * step, *s[2:]) if last and r != "y" else s, dtype
                )
                for s, r in zip(plain, roles, strict=True)
            ]
            assert operands_of(way.problem) == wide
            attributes = graph.nodes[0].params
            conv = node.op if kind == "fprop" else node.op.conv
            assert attributes["stride"] == [*conv.stride]
            assert attributes["padding"] == [*conv.padding]
            # The op's own shape rule, of the shapes that cuDNN gets.
            x, w, y = (wide[roles.index(role)] for role in "xwy")
            assert y.shape == conv.infer(*(Spec(t.shape) for t in (x, w))).shape


def labels(node):
    return [way.label for way in cudnn_kernel.ways(node, Exactness())]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
def test_pixels_of_blocks_are_channels_of_first_convolutions_without_a_stride(last, dtype):
    """The results have as many pixels, and there are fewer products."""
    lie = channels_last if last else contiguous
    for window, stride, padding, size, x, w in (
        (7, 2, 3, (2, 7), (8, 48, 115, 112), (64, 48, 4, 1)),
        (11, 4, 2, (4, 4), (8, 48, 57, 57), (64, 48, 3, 3)),
    ):
        y, _, dw = convolution(8, 3, 64, 224, window, stride, padding, dtype)
        for node in (y, dw):
            roles = cudnn_kernel.ROLES[type(node.op)]
            lanes = tuple(64 if last and role == "y" else 1 for role in roles)
            laid = laid_out(node, lanes) if last else node
            way, plain = cudnn_kernel.ways(laid, Exactness())
            assert (way.label, plain.label) == (f"space to depth {size[0]} x {size[1]} ", "")
            problem = way.problem
            tensors = dict(zip(roles, (*problem.inputs, problem.output), strict=True))
            shapes = {"x": x, "w": w, "y": y.shape}
            assert tensors == {role: lie(shape, dtype) for role, shape in shapes.items()}
            simple = Conv2d().infer(Spec(x), Spec(w))
            assert (simple.shape, problem.stride, problem.padding) == (y.shape, (1, 1), (0, 0))
            assert dict(zip(roles, way.blocks, strict=True)) == {
                "x": Blocks(size, (stride, stride), (padding, padding)),
                "w": Blocks(size, size),
                "y": SINGLE_PIXELS,
            }


def test_blocks_are_as_large_as_takes_least_and_other_convolutions_have_none():
    def first(dtype="bfloat16", c=3, window=(3, 3), size=(224, 224), **facts):
        x = input("x", (8, c, *size), dtype)
        w = input("w", (33, c // facts.get("groups", 1), *window), dtype)
        return labels(Conv2d(**facts)(x, w))

    def blocks(height, width):
        return [f"space to depth {height} x {width} ", ""]

    assert first(window=(7, 7), stride=(2, 2)) == blocks(2, 7)
    assert first(window=(11, 11), stride=(4, 4)) == blocks(4, 4)
    assert first("float32", stride=(2, 2)) == blocks(3, 3)
    assert first(window=(8, 8), stride=(8, 8)) == blocks(8, 8)
    assert first(window=(1, 10), stride=(1, 5), c=1, size=(1, 16000)) == blocks(1, 10)
    assert first(window=(1, 2), stride=(3, 3)) == blocks(1, 2)
    for other in (
        first(),
        first(c=5, stride=(2, 2)),
        first(window=(1, 1), stride=(2, 2)),
        first(stride=(2, 2), dilation=(2, 2)),
        first(groups=3, c=3, stride=(2, 2)),
        labels(convolution(2, 3, 8, 9, 3, 2, 1, "bfloat16")[1]),
    ):
        assert other == [""]


def test_what_lies_as_cudnn_reads_it_is_not_copied():
    point = convolution(8, 64, 128, 14, 1, 1, 0, "float32")[0]
    nhwc = laid_out(point, (64, 1, 128))
    first = convolution(8, 3, 64, 14, 3, 1, 1, "float32")[0]
    in_place = [
        [t.has_layout_of(u) for t, u in zip(way.inputs, way.problem.inputs, strict=True)]
        for node in (point, nhwc, first, laid_out(first, (1, 1, 64)))
        for way in cudnn_kernel.ways(node, Exactness())
    ]
    assert in_place == [[True, True], [True, True], [True, True], [False, False]]


# ---------------------------------------------------------------- what follows


X, W, B = (input(n, s) for n, s in (("x", (2, 8, 5, 5)), ("w", (16, 8, 3, 3)), ("b", (16,))))
IMAGE, WINDOW = input("x", (2, 3, 9, 9)), input("w", (16, 3, 4, 4))
BLOCKS, UNFUSED = "space to depth 2 x 2 ", "unfused CONV_FPROP, then "
RELU, TANH = Activated(Conv2d(), Relu()), Activated(Conv2d(), Tanh())
ADDED = ["CONV_FPROP bias", f"{UNFUSED}fused[add]"]
BLOCKED = [f"{BLOCKS}CONV_FPROP bias", f"unfused {BLOCKS}CONV_FPROP, then fused[add]", *ADDED]
FOLLOWING = {  # a node, whether NaN may be lost, and its ways
    "a bias": (Conv2d()(X, W, B), False, ADDED),
    "a relu": (RELU(X, W, B), False, [f"{UNFUSED}fused[add, relu]"]),
    "a relu without NaN": (
        *(RELU(X, W, B), True, ["CONV_FPROP bias relu", f"{UNFUSED}fused[add, relu]"]),
    ),
    "a tanh": (TANH(X, W), False, [f"{UNFUSED}fused[tanh]"]),
    "a tanh without NaN": (TANH(X, W), True, [f"{UNFUSED}fused[tanh]"]),
    "a stride": (Conv2d((2, 2))(IMAGE, WINDOW, B), False, BLOCKED),
}


@pytest.mark.parametrize(("node", "fast_math", "expected"), FOLLOWING.values(), ids=FOLLOWING)
def test_what_follows_a_convolution_is_cudnns_or_a_kernel_afterwards(node, fast_math, expected):
    def summary(way):
        following = "" if way.epilogue is None else f", then {way.epilogue.op}"
        return f"{way.label}{' '.join(operations_of(build(way.problem)))}{following}"

    ways = cudnn_kernel.ways(node, Exactness(fast_math=fast_math))
    assert [*map(summary, ways)] == expected
    for way in ways:
        assert operands_of(way.problem) == [*way.problem.inputs, way.problem.output]
        assert (way.problem == way.problem.without_epilogue) == (len(way.problem.inputs) == 2)


def test_groups_are_channels_over_channels_of_the_weights():
    x, w = input("x", (2, 12, 5, 5)), input("w", (6, 2, 3, 3))
    node = laid_out(Conv2d(groups=6)(x, w), (12, 1, 6))
    (way,) = cudnn_kernel.ways(node, Exactness())
    assert [t.shape for t in operands_of(way.problem)] == [
        (2, 12, 5, 5),
        (6, 2, 3, 3),
        (2, 6, 3, 3),
    ]
