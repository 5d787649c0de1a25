"""Copies around cuDNN's convolutions: any channels, pixels as channels, and back."""

import itertools

import cuda_on_cpu
import numpy as np
import pytest
from long_runs import ARCHITECTURES, long
from needs import needs_gpp

pytest.importorskip("cudnn")
from minigraph.devices.cuda import channels, handwritten
from minigraph.devices.cuda.channels import SINGLE_PIXELS, Blocks
from minigraph.devices.cuda.cudnn_graph import Tensor, channels_last, contiguous

SHAPES = {  # of the operand, and the channels that cuDNN has
    "an image of 3 channels": ((2, 3, 19, 17), 8),
    "pixels of several blocks": ((1, 3, 21, 30), 4),
    "one channel": ((2, 1, 5, 3), 8),
    "weights": ((5, 48, 3, 3), 48),
    "weights of 3 channels": ((70, 3, 2, 5), 8),
    "weights of a group": ((8, 6, 3, 1), 6),
    "weights of odd channels": ((3, 5, 1, 2), 5),
    "weights of one pixel": ((300, 3, 1, 1), 4),
}


BLOCKED = {  # of the operand, the blocks, and the shape that cuDNN has
    "ResNet's images": ((2, 3, 18, 22), ((2, 2), (2, 2), (3, 3)), (2, 16, 12, 14)),
    "pixels that no window has": ((1, 3, 23, 20), ((4, 4), (4, 4), (2, 1)), (1, 48, 5, 5)),
    "a padding below the last pixel": ((2, 2, 7, 5), ((3, 3), (3, 3), (2, 4)), (2, 24, 5, 4)),
    "blocks that are no squares": ((3, 1, 17, 40), ((1, 5), (1, 5), (0, 1)), (3, 8, 17, 9)),
    "blocks that overlap": ((2, 3, 13, 20), ((2, 7), (2, 2), (3, 3)), (2, 48, 10, 10)),
    "blocks with gaps": ((2, 3, 13, 20), ((2, 1), (3, 2), (1, 0)), (2, 8, 5, 10)),
    "AlexNet's weights": ((5, 3, 11, 11), ((4, 4), (4, 4)), (5, 48, 3, 3)),
    "weights of an odd window": ((40, 3, 2, 5), ((2, 3), (2, 3)), (40, 20, 1, 2)),
    "weights of one pixel": ((9, 3, 16, 16), ((16, 16), (16, 16)), (9, 768, 1, 1)),
}


def copies(dtype):
    """Yield where what lies how, from and to, and its blocks."""
    for shape, more in SHAPES.values():
        inner = channels_last((shape[0], more, *shape[2:]), dtype)
        for lie in (contiguous, channels_last) if more > shape[1] else (contiguous,):
            yield lie(shape, dtype), inner, SINGLE_PIXELS
            yield inner, lie(shape, dtype), SINGLE_PIXELS
    for shape, facts, inside in BLOCKED.values():
        blocks = Blocks(*facts)
        for lie, lie_inside in itertools.product((contiguous, channels_last), repeat=2):
            outer, inner = lie(shape, dtype), lie_inside(inside, dtype)
            yield outer, inner, blocks
            if len(facts) == 2:
                yield inner, outer, blocks


def words(inputs, outputs, scratch):
    return [inputs[0], outputs[0]]


def launched(source, target, blocks):
    return channels.channel_copy(source, target, words, blocks)


COPIES = [*copies("float32"), *copies("bfloat16")]
LAUNCHES = list(itertools.starmap(launched, COPIES))
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(handwritten, "MAX_32_BIT_INDEX", 1)
    HUGE = list(itertools.starmap(launched, COPIES))
SOURCES = {launch.source for launch in (*LAUNCHES, *HUGE)}


def places(outer, inner, blocks):
    """Return which element of an operand, counted from 1, each one that cuDNN has is; 0: none."""
    numbers = 1 + np.arange(np.prod(outer)).reshape(outer)
    (above, before), (h, w), (down, across) = blocks.padding, blocks.size, blocks.stride
    numbers_inside = np.zeros(inner, int)
    for n, k, i, j in np.ndindex(inner):
        channel, pixel = divmod(k, h * w)
        at = n, channel, i * down + pixel // w - above, j * across + pixel % w - before
        if all(0 <= x < size for x, size in zip(at, outer, strict=True)):
            numbers_inside[n, k, i, j] = numbers[at]
    return numbers_inside


def lying(array, tensor: Tensor):
    """Return memory as a tensor lies in it."""
    steps = [step * array.itemsize for step in tensor.strides]
    return np.lib.stride_tricks.as_strided(array, tensor.shape, steps)


@needs_gpp
@pytest.mark.parametrize("launches", [LAUNCHES, HUGE], ids=["32 bits", "64 bits"])
def test_what_both_have_is_copied_and_other_channels_are_zero(build_cuda, launches):
    texts = build_cuda(SOURCES)
    rng = np.random.default_rng(0)
    for (source, target, blocks), launch in zip(COPIES, launches, strict=True):
        bits = {"float32": np.uint32, "bfloat16": np.uint16}[source.dtype]
        values = rng.integers(1, 1 << 16, np.prod(source.shape), bits)
        copy, untouched = cuda_on_cpu.room((np.prod(target.shape),), bits)
        cuda_on_cpu.run(texts, [launch], [values], [copy])
        expected = np.zeros(target.shape, bits)
        before, after = source.shape[1], target.shape[1]
        same = before == after and target.has_layout_of(channels_last(target.shape))
        if after > before or same:
            at = places(source.shape, target.shape, blocks)
            expected[at > 0] = lying(values, source).flat[at[at > 0] - 1]
        else:
            at = places(target.shape, source.shape, blocks)
            assert (np.sort(at[at > 0]) == 1 + np.arange(expected.size)).all()
            expected.flat[at[at > 0] - 1] = lying(values, source)[at > 0]
        np.testing.assert_array_equal(lying(copy, target), expected)
        assert untouched()


def test_copies_that_differ_in_sizes_share_a_kernel():
    small, large = (
        channels.channel_copy(
            contiguous((2, 3, n, n), "bfloat16"), channels_last((2, 8, n, n), "bfloat16"), words
        )
        for n in (5, 224)
    )
    assert small.source == large.source
    assert large.grid == (224 * 224 // 256, 2, 1)


@pytest.mark.parametrize("step", [8, long(1)])
def test_copies_compile_for_the_device(step):
    nvrtc = pytest.importorskip("minigraph.devices.cuda.nvrtc", exc_type=ImportError)
    some = sorted(SOURCES, key=lambda source: source.name)[::step]
    program = nvrtc.compile_program(cuda_on_cpu.program(some), ARCHITECTURES[0])
    assert program[:4] == b"\x7fELF"
