"""Copies around cuDNN's convolutions: any channels, to channels last and back."""

import cuda_on_cpu
import numpy as np
import pytest
from long_runs import ARCHITECTURES
from needs import needs_gpp

pytest.importorskip("cudnn")
from minigraph.devices.cuda import channels
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


def copies(dtype):
    """Yield where what lies how, from and to."""
    for shape, more in SHAPES.values():
        inner = channels_last((shape[0], more, *shape[2:]), dtype)
        for lie in (contiguous, channels_last) if more > shape[1] else (contiguous,):
            yield lie(shape, dtype), inner
            yield inner, lie(shape, dtype)


def words(inputs, outputs, scratch):
    return [inputs[0], outputs[0]]


COPIES = [*copies("float32"), *copies("bfloat16")]
MADE = [channels.channel_copy(*pair, words) for pair in COPIES]
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(channels, "NARROW", 1)
    HUGE = [channels.channel_copy(*pair, words) for pair in COPIES]
SOURCES = {launch.source for launch in (*MADE, *HUGE)}


def lying(array, tensor: Tensor):
    """Return memory as a tensor lies in it."""
    steps = [step * array.itemsize for step in tensor.strides]
    return np.lib.stride_tricks.as_strided(array, tensor.shape, steps)


@needs_gpp
@pytest.mark.parametrize("launches", [MADE, HUGE], ids=["32 bits", "64 bits"])
def test_channels_that_both_have_are_copied_and_others_are_zero(run_folder, launches):
    texts = cuda_on_cpu.build(SOURCES, run_folder / "cuda")
    rng = np.random.default_rng(0)
    for (source, target), launch in zip(COPIES, launches, strict=True):
        bits = {"float32": np.uint32, "bfloat16": np.uint16}[source.dtype]
        given = rng.integers(1, 1 << 16, np.prod(source.shape), bits)
        made, untouched = cuda_on_cpu.room((np.prod(target.shape),), bits)
        cuda_on_cpu.run(texts, [launch], [given], [made])
        wanted = np.zeros(target.shape, bits)
        both = slice(min(source.shape[1], target.shape[1]))
        wanted[:, both] = lying(given, source)[:, both]
        np.testing.assert_array_equal(lying(made, target), wanted)
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


@pytest.mark.parametrize("arch", ARCHITECTURES[:1])
def test_copies_compile_for_the_device(arch):
    nvrtc = pytest.importorskip("minigraph.devices.cuda.nvrtc", exc_type=ImportError)
    assert nvrtc.compile_program(cuda_on_cpu.program(SOURCES), arch)[:4] == b"\x7fELF"
