"""Models as programs of PyTorch have them, each with a batch and a loss."""

import math
from collections.abc import Callable
from typing import NamedTuple

import image_programs as of_images
import torch
from gradient_programs import make_own_gradients
from image_programs import Net
from torch import distributions, nn
from torch.distributions import Categorical, Gamma, MixtureSameFamily, Normal, kl_divergence
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Program(NamedTuple):
    """Functions that make a model and a batch in float64, and the loss."""

    make: Callable
    batch: Callable
    loss: Callable = F.cross_entropy


def floats(*shape):
    return torch.randn(shape, dtype=torch.float64)


def labels(classes, *shape):
    return torch.randint(0, classes, shape)


# ---------------------------------------------------------------- sequences


def masked_attention(m, tokens):
    hidden = tokens == 0
    x = m.embed(tokens) * math.sqrt(8)
    y, weights = m.attention(x, x, x, key_padding_mask=hidden)
    y = y.masked_fill(hidden[..., None], 0).sum(1) / (~hidden).sum(1, keepdim=True)
    return m.head(y) + weights.square().mean()


def make_masked_attention():
    attention = nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)
    embed = nn.Embedding(11, 8, padding_idx=0)
    return Net(masked_attention, embed=embed, attention=attention, head=nn.Linear(8, 3))


def padded_tokens():
    tokens = torch.randint(1, 11, (3, 5))
    tokens[0, 3:] = 0
    return tokens, labels(3, 3)


def grouped_queries(m, tokens):
    """Attention in which two heads share keys, with rotary places and a gate, as in Llama."""
    x = m.embed(tokens)
    h = m.norm(x)
    q, k, v = (m.q(h), 4), (m.k(h), 2), (m.v(h), 2)
    q, k, v = (y.unflatten(-1, (heads, 4)).transpose(1, 2) for y, heads in (q, k, v))
    angle = torch.outer(torch.arange(5), torch.tensor([1.0, 0.1])).repeat(1, 2).to(x.dtype)

    def rotated(y):
        a, b = y.chunk(2, -1)
        return y * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

    y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True, enable_gqa=True)
    x = x + y.transpose(1, 2).flatten(2)
    return (F.silu(m.gate(x)) * x @ m.embed.weight.T).flatten(0, 1)


def make_grouped():
    parts = {"embed": nn.Embedding(11, 16), "norm": nn.RMSNorm(16), "gate": nn.Linear(16, 16)}
    for name, width in (("q", 16), ("k", 8), ("v", 8)):
        parts[name] = nn.Linear(16, width, bias=False)
    return Net(grouped_queries, **parts)


def recurrent(m, x, lengths):
    """Cells in a Python loop on a bidirectional GRU, and the last step of each sequence."""
    y, h = m.gru(x)
    state = h.new_zeros(len(x), 6), h.new_zeros(len(x), 6)
    steps = []
    for t in range(x.shape[1]):
        state = m.cell(y[:, t], state)
        steps.append(state[0])
    last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, 6)
    return m.head(torch.stack(steps, 1).gather(1, last).squeeze(1) + h.mean())


def make_recurrent():
    gru = nn.GRU(4, 5, bidirectional=True, batch_first=True)
    return Net(recurrent, gru=gru, cell=nn.LSTMCell(10, 6), head=nn.Linear(6, 3))


def wavenet(m, x):
    x, skip = m.first(x), 0
    for conv in m.convs:
        y = torch.tanh(F.glu(conv(F.pad(x, (conv.dilation[0], 0))), 1))
        x, skip = x + y, skip + y
    return m.head(F.relu(skip))


def make_wavenet():
    convs = [weight_norm(nn.Conv1d(4, 8, 2, dilation=2**i)) for i in range(3)]
    parts = {"first": nn.Conv1d(1, 4, 1), "head": nn.Conv1d(4, 5, 1)}
    return Net(wavenet, convs=nn.ModuleList(convs), **parts)


def conditional_field(m, x, y):
    """The negative log likelihood of labels by a conditional random field."""
    scores = m.scores(x)
    total = scores[:, 0]
    for i in range(1, x.shape[1]):
        total = torch.logsumexp(total[:, :, None] + m.moves + scores[:, i, None], 1)
    path = scores.gather(2, y[..., None]).sum((1, 2)) + m.moves[y[:, :-1], y[:, 1:]].sum(1)
    return torch.logsumexp(total, 1) - path + torch.logcumsumexp(scores, 1).mean()


# ---------------------------------------------------------------- sets, graphs and tables


def point_net(m, x):
    moved = (m.move(x).amax(2) @ m.turn + torch.eye(3, dtype=x.dtype).flatten()).view(-1, 3, 3)
    y = F.relu(m.norm(m.conv((x.mT @ moved).mT))).max(dim=-1).values
    return m.head(y), moved


def point_loss(outputs, target):
    scores, moved = outputs
    difference = moved @ moved.mT - torch.eye(3, dtype=moved.dtype)
    return F.cross_entropy(scores, target) + 0.1 * torch.norm(difference, dim=(1, 2)).mean()


def make_point_net():
    parts = {"move": nn.Conv1d(3, 8, 1), "turn": nn.Parameter(torch.randn(8, 9) * 0.1)}
    parts |= {"conv": nn.Conv1d(3, 8, 1), "norm": nn.BatchNorm1d(8), "head": nn.Linear(8, 3)}
    return Net(point_net, **parts)


def graph_net(m, x, edges):
    """Sums, means and maxima of what neighbours send; ReLU makes some of them equal."""
    h, (source, to) = F.relu(m.first(x)), edges
    index, none = to[:, None].expand(-1, 4), h.new_zeros(h.shape)
    largest = none.scatter_reduce(0, index, h[source], "amax", include_self=False)
    mean = none.scatter_reduce(0, index, h[source], "mean", include_self=False)
    return m.head(h + none.index_add(0, to, h[source]) + largest * mean)


def bags(m, tokens, offsets, more, factors):
    return m.head(m.mean(tokens, offsets) + m.sum(more, per_sample_weights=factors))


def make_bags():
    first, second = (nn.EmbeddingBag(11, 6, mode=mode, padding_idx=2) for mode in ("mean", "sum"))
    return Net(bags, mean=first, sum=second, head=nn.Linear(6, 3))


def spline(m, x):
    edges = torch.cumsum(m.widths.softmax(0), 0)
    bins = torch.searchsorted(edges, x).clamp(max=4)
    return m.heights[bins] * (edges[bins] - x) + torch.bucketize(x, edges.detach()[:3]) + x


def make_spline():
    heights = nn.Parameter(torch.randn(5))
    return Net(spline, widths=nn.Parameter(torch.randn(5)), heights=heights)


def robust(outputs, target):
    distances = (outputs - target).abs()
    return (
        distances.median()
        + distances.nanmedian() * distances.kthvalue(2).values
        + torch.quantile(outputs, 0.3)
    )


# ---------------------------------------------------------------- distributions and embeddings


def vae(m, x):
    mean, spread = m.encode(x).chunk(2, -1)
    q = Normal(mean, F.softplus(spread))
    return m.decode(q.mean + 0 * q.rsample()), kl_divergence(q, Normal(mean * 0, 1)).mean()


def mixture(m, x):
    logits, mean, spread = m.head(x).chunk(3, 1)
    return MixtureSameFamily(Categorical(logits=logits), Normal(mean, spread.exp()))


def tails(rates, target):
    """Distributions whose densities have the gamma function, as forecasts of counts use them."""
    a, b, c, d = rates
    counts = distributions.NegativeBinomial(a, logits=b), distributions.Poisson(d)
    each = *counts, distributions.StudentT(2 + c, a, d)
    divergence = kl_divergence(Gamma(a, b), Gamma(c, d)) + distributions.Beta(b, c).entropy()
    return divergence.mean() - sum(one.log_prob(target).mean() for one in each)


def policy(m, x, actions):
    h = torch.tanh(m.body(x))
    actor = Categorical(logits=m.actor(h))
    return actor.log_prob(actions), actor.entropy(), m.critic(h).squeeze(-1)


def proximal(outputs, target):
    (log, entropy, value), (old, gain, returns) = outputs, target.unbind(1)
    ratio = (log - old).exp()
    clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    return F.mse_loss(value, returns) / 2 - clipped.mean() - 0.01 * entropy.mean()


def quantized(m, x):
    """Codes by the nearest vector, with the gradient straight through."""
    z = m.encode(x)
    code = m.codes(torch.cdist(z, m.codes.weight).argmin(1))
    pulled = F.mse_loss(z.detach(), code) + F.mse_loss(z, code.detach())
    return F.linear(z + (code - z).detach(), m.encode.weight.T), pulled


def contrast(m, a, b):
    """A queue of keys in a buffer, as in MoCo."""
    q = F.normalize(m.query(a), dim=1)
    with torch.no_grad():
        k = F.normalize(m.key(b), dim=1)
    scores = torch.cat([(q * k).sum(1, keepdim=True), q @ m.queue.clone().detach()], 1)
    with torch.no_grad():
        m.queue[:, (m.place + torch.arange(2)) % 8] = k.T
        m.place += 2
    return scores / 0.07


def make_contrast():
    net = Net(contrast, query=nn.Linear(4, 3), key=nn.Linear(4, 3).requires_grad_(False))
    net.register_buffer("queue", torch.randn(3, 8))
    net.register_buffer("place", torch.tensor(0))
    return net


def distilled(m, x):
    with torch.no_grad():
        targets = F.softmax(m.teacher(x) / 2, 1)
    return F.log_softmax(m.student(x) / 2, 1), targets


def make_discriminator():
    conv = spectral_norm(nn.Conv2d(1, 4, 3, 2, 1))
    return nn.Sequential(conv, nn.LeakyReLU(0.2), nn.Flatten(), spectral_norm(nn.Linear(36, 1)))


def added(distance):
    """Return a loss of (result, penalty)."""
    return lambda outputs, target: distance(outputs[0], target) + outputs[1]


def both(x):
    return x, x


PROGRAMS = {
    "unet": Program(
        of_images.make_unet,
        lambda: (floats(2, 3, 16, 16), labels(2, 2, 16, 16)),
        of_images.dice_and_focal,
    ),
    "volumes": Program(
        of_images.make_volumes,
        lambda: (floats(1, 1, 4, 4, 4), labels(2, 1, 4, 4, 4)),
        added(F.cross_entropy),
    ),
    "masked attention": Program(make_masked_attention, padded_tokens),
    "grouped queries": Program(make_grouped, lambda: (labels(11, 2, 5), labels(11, 10))),
    "recurrent": Program(
        make_recurrent, lambda: (floats(3, 3, 4), torch.tensor([3, 1, 2]), labels(3, 3))
    ),
    "wavenet": Program(make_wavenet, lambda: (floats(2, 1, 12), labels(5, 2, 12))),
    "conditional field": Program(
        lambda: Net(
            conditional_field, scores=nn.Linear(4, 3), moves=nn.Parameter(torch.randn(3, 3))
        ),
        lambda: (floats(2, 5, 4), labels(3, 2, 5), floats(2)),
        lambda found, unused: found.mean(),
    ),
    "point net": Program(make_point_net, lambda: (floats(4, 3, 10), labels(3, 4)), point_loss),
    "graph": Program(
        lambda: Net(graph_net, first=nn.Linear(3, 4), head=nn.Linear(4, 2)),
        lambda: (floats(6, 3), labels(6, 2, 9), labels(2, 6)),
    ),
    "bags": Program(
        make_bags,
        lambda: (
            *(labels(11, 10), torch.tensor([0, 3, 3])),
            *(labels(11, 3, 4), floats(3, 4), labels(3, 3)),
        ),
    ),
    "bilinear": Program(
        lambda: nn.Bilinear(3, 4, 5), lambda: (floats(4, 3), floats(4, 4), floats(4, 5)), F.mse_loss
    ),
    "spline": Program(make_spline, lambda: (torch.rand(7).double(), floats(7)), robust),
    "vae": Program(
        lambda: Net(vae, encode=nn.Linear(8, 4), decode=nn.Linear(2, 8)),
        lambda: both(floats(3, 8)),
        added(F.mse_loss),
    ),
    "mixture": Program(
        lambda: Net(mixture, head=nn.Linear(3, 9)),
        lambda: (floats(5, 3), floats(5)),
        lambda found, target: -found.log_prob(target).mean(),
    ),
    "counts": Program(
        lambda: Net(lambda m, x: F.softplus(m.head(x)).unbind(1), head=nn.Linear(3, 4)),
        lambda: (floats(5, 3), labels(4, 5).double()),
        tails,
    ),
    "policy": Program(
        lambda: Net(policy, body=nn.Linear(4, 6), actor=nn.Linear(6, 3), critic=nn.Linear(6, 1)),
        lambda: (floats(5, 4), labels(3, 5), floats(5, 3)),
        proximal,
    ),
    "quantized": Program(
        lambda: Net(quantized, encode=nn.Linear(5, 3), codes=nn.Embedding(7, 3)),
        lambda: both(floats(6, 5)),
        added(F.mse_loss),
    ),
    "contrast": Program(
        make_contrast, lambda: (floats(2, 4), floats(2, 4), torch.zeros(2, dtype=torch.int64))
    ),
    "distilled": Program(
        lambda: Net(distilled, student=nn.Linear(6, 3), teacher=nn.Linear(6, 3)),
        lambda: (floats(4, 6), labels(3, 4)),
        lambda found, y: F.kl_div(*found, reduction="batchmean") + F.nll_loss(found[0], y),
    ),
    "own gradients": Program(
        make_own_gradients,
        lambda: (floats(8, 4), labels(2, 8)),
        lambda found, y: F.cross_entropy(found[0], y) + F.cross_entropy(found[1], y),
    ),
    "discriminator": Program(
        make_discriminator,
        lambda: (floats(2, 1, 6, 6), torch.ones(2, 1).double()),
        F.binary_cross_entropy_with_logits,
    ),
}
