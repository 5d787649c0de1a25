"""Models with complex numbers learn what they learn in PyTorch."""

import functools

import pytest

torch = pytest.importorskip("torch")
from image_programs import Net  # noqa: E402
from torch import fft, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from trained_pair import OPTIMIZERS, Pair, assert_learns  # noqa: E402

import minigraph as mg  # noqa: E402
import minigraph.torch as mgt  # noqa: E402

double = functools.partial(torch.randn, dtype=torch.float64)
learns = functools.partial(assert_learns, loss=F.mse_loss, dtype=None)  # complex weights stay so


def batch(*shape, target=None):
    return lambda n=4: (double(n, *shape), double(n, *(target or shape)))


def rotations(length, width):
    angles = torch.outer(torch.arange(length), 0.1 ** torch.arange(width)).double()
    return torch.polar(torch.ones_like(angles), angles)


def rotated(m, x):
    """Rotary embeddings as Llama's reference has them (Su et al., 2021)."""
    pairs = torch.view_as_complex(m.linear(x).unflatten(-1, (-1, 2)))
    factors = m.rotations[: x.shape[1]] if hasattr(m, "rotations") else rotations(x.shape[1], 3)
    return torch.view_as_real(pairs * factors).flatten(-2)


def spectral(m, x):
    """A layer of a Fourier neural operator (Li et al., 2021)."""
    spectrum = fft.rfft2(x)
    y = torch.zeros_like(spectrum)
    y[:, :, :2, :3] = torch.einsum("bihw,iohw->bohw", spectrum[:, :, :2, :3], m.first)
    y[:, :, -2:, :3] = torch.einsum("bihw,iohw->bohw", spectrum[:, :, -2:, :3], m.last)
    return F.gelu(fft.irfft2(y, s=x.shape[-2:]) + m.conv(x))


def spectral_layer():
    first, last = (nn.Parameter(torch.randn(3, 3, 2, 3, dtype=torch.cdouble)) for _ in range(2))
    return Net(spectral, first=first, last=last, conv=nn.Conv2d(3, 3, 1, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["buffer", "constant", "computed"])
def test_rotations_may_be_a_buffer_a_constant_or_computed(kind):
    model = Net(rotated, linear=nn.Linear(6, 6, dtype=torch.float64))
    if kind == "buffer":
        model.register_buffer("rotations", rotations(5, 3))
    elif kind == "constant":
        model.rotations = rotations(5, 3)
    learns(model, batch(5, 6))


@pytest.mark.parametrize("optimizer", sorted({*OPTIMIZERS} - {"fused", "groups"}))
def test_complex_weights_and_the_states_of_optimizers_are_pytorchs(optimizer):
    make = OPTIMIZERS[optimizer]
    pair = Pair(make, spectral_layer(), batch(3, 6, 7), F.mse_loss, None, clip_grad_norm=1e6)
    pair.train(3)
    pair.same()
    for _ in range(2):  # each goes on from what the other one left
        xs = pair.batch()
        pair.close(pair.eager(1, xs), pair.eager(0, xs))
        pair.train(1)
    pair.same()


def arithmetic(m, x):
    z = fft.fft(x @ m.real) @ m.weight
    y = z.abs() + z.angle() + (z / (z + 10)).real + (2 / z).real / 100 + (z**3).imag / 100
    y = y + torch.exp(1j * x).real + (z - x).imag + F.linear(z, m.weight).real
    y = y + torch.complex(x, x + 1).conj().mean().imag + torch.where(x > 0, z, -z).imag
    y = y + torch.stack([z, z * 2j]).sum(0).real + torch.cat([z, x]).roll(1, 0)[:8].real
    return y / 100


def transforms(m, x):
    y = fft.ifft(m.weight * fft.fft(x, norm="ortho"), norm="ortho").real
    y = y + F.pad(m.weight[:, :6], (1, 1), value=0.5).abs()
    y = (
        y
        + fft.irfft(fft.rfft(x, n=12), n=8)
        + fft.fftshift(fft.fftn(x)).imag
        + fft.ihfft(x).real.sum()
    )
    y = y + fft.hfft(m.weight[:, :5], n=8) + fft.irfft2(fft.rfft2(x, norm="forward"), s=(8, 8))
    window = torch.hann_window(4, dtype=x.dtype)
    return y + torch.stft(x[0] + m.real[0], 4, window=window, return_complex=True).abs().mean()


@pytest.mark.parametrize("function", [arithmetic, transforms])
def test_operators_of_complex_numbers_have_pytorchs_results_and_gradients(function):
    weight, real = (nn.Parameter(torch.randn(8, 8, dtype=t)) for t in (torch.cdouble, torch.double))
    learns(Net(function, weight=weight, real=real), lambda: (double(8, 8), double(8, 8)))


def test_inputs_may_be_complex():
    linear = nn.Linear(3, 2, dtype=torch.cdouble)
    model = Net(lambda m, x: m.linear(x).abs(), linear=linear)

    def conjugates(n=4):
        return torch.randn(n, 3, dtype=torch.cdouble).conj(), double(n, 2)

    pair = Pair(OPTIMIZERS["adam"], model, conjugates, F.mse_loss, None, dynamic=True)
    for n in (4, 2, 5):
        pair.train(batch=conjugates(n))
    pair.same()


def test_converted_models_compute_with_complex_weights():
    model = spectral_layer()
    example = double(2, 3, 6, 7)
    x = mg.input("x", example.shape, "float64")
    function = mg.comp_graph("cpu").compile([x], mgt.convert(model, (example,))(x))
    torch.testing.assert_close(torch.from_numpy(function(example.numpy())), model(example).detach())


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda m, x: fft.fft(x), r"returns complex numbers, at .*; return torch.view_as_real\("),
        (lambda m, x: fft.fft(x).sin().real, r"aten.sin.default .*of complex numbers, few"),
        (lambda m, x: (fft.fft(x) ** 0.5).real, r"complex numbers to the power 0.5 are not"),
    ],
)
def test_what_is_not_supported_is_an_error_of_one_line(function, error):
    with pytest.raises(mg.GraphError, match=error):
        mgt.convert(Net(function), (double(2, 4),))(mg.input("x", (2, 4), "float64"))
