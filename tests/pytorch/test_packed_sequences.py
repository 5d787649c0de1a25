"""Packed sequences around recurrent layers learn what they learn in PyTorch."""

import pytest

torch = pytest.importorskip("torch")
from image_programs import Net  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402
from trained_pair import Pair, assert_learns, sgd  # noqa: E402

import minigraph as mg  # noqa: E402


def batch(n=3, length=4, is_sorted=False):
    """Return sequences, whose longest one has all steps, their lengths and labels."""
    lengths = torch.randint(1, length + 1, (n,))
    lengths[n // 2] = length
    lengths = lengths.sort(descending=True).values if is_sorted else lengths
    return torch.randn(n, length, 4).double(), lengths, torch.randint(0, 3, (n,))


def last_states(m, x, lengths):
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    y, (h, c) = m.rnn(packed)
    y, sizes = pad_packed_sequence(y, batch_first=True, padding_value=-1.0)
    return m.head(torch.cat([h[-2], h[-1], c[-1], y.amax(1), y.sum(1)], 1)) * sizes[:, None]


def time_first(m, x, lengths):
    packed = pack_padded_sequence(x.transpose(0, 1), lengths)
    packed = PackedSequence(F.relu(m.first(packed.data)), packed.batch_sizes)
    y, h = m.rnn(packed, m.start.expand(-1, x.shape[0], -1).contiguous())
    y, _ = m.second(y)
    y, _ = pad_packed_sequence(y, total_length=7)
    return m.head(y.mean(0) + h[0])


def test_layers_that_follow_one_another_take_packed_sequences():
    model = Net(
        time_first,
        first=nn.Linear(4, 5),
        rnn=nn.GRU(5, 6),
        second=nn.RNN(6, 6, nonlinearity="relu", bias=False),
        start=nn.Parameter(torch.zeros(1, 1, 6)),
        head=nn.Linear(6, 3),
    )
    assert_learns(model, lambda: batch(is_sorted=True), F.cross_entropy, 5)


def test_layers_in_both_directions_take_any_number_of_packed_sequences():
    rnn = nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True)
    pair = Pair(sgd, Net(last_states, rnn=rnn, head=nn.Linear(42, 3)), batch, dynamic=True)
    for n in (3, 5, 2):
        pair.train(batch=batch(n))
    pair.same()


def test_losses_of_packed_steps_are_pytorch_s():
    def forward(m, x, lengths):
        return m.head(m.rnn(pack_padded_sequence(x, lengths, True))[0].data), lengths

    def loss(outputs, labels):
        y, lengths = outputs
        return F.cross_entropy(y, pack_padded_sequence(labels, lengths, True).data)

    def some():
        x, lengths, _ = batch(is_sorted=True)
        return x, lengths, torch.randint(0, 3, x.shape[:2])

    model = Net(forward, rnn=nn.LSTM(4, 6, batch_first=True), head=nn.Linear(6, 3))
    assert_learns(model, some, loss)


def test_a_batch_that_is_padded_too_far_needs_a_total_length():
    def forward(m, x, lengths):
        return pad_packed_sequence(m.rnn(pack_padded_sequence(x, lengths, True))[0], True)[0]

    model = Net(forward, rnn=nn.GRU(4, 3, batch_first=True))
    x, full = torch.randn(2, 4, 4).double(), torch.tensor([4, 2])
    pair = Pair(sgd, model, lambda: (x, full, x[..., :3]), F.mse_loss)
    pair.train(2)
    with pytest.raises(mg.GraphError, match="padded beyond its longest sequence"):
        pair.step(x, torch.tensor([3, 2]), x[..., :3])
    pair.same()


def test_lengths_that_pytorch_refuses_are_an_error():
    def forward(m, x, lengths):
        return pad_packed_sequence(m.rnn(pack_padded_sequence(x, lengths, True))[0], True, 0.0, 4)[
            0
        ]

    model = Net(forward, rnn=nn.GRU(4, 3, batch_first=True))
    x = torch.randn(2, 4, 4).double()
    pair = Pair(sgd, model, lambda: (x, torch.tensor([4, 2]), x[..., :3]), F.mse_loss)
    pair.train()
    for lengths in ([3, 0], [5, 2], [2, 3]):
        with pytest.raises(mg.GraphError, match="lengths must be at least 1"):
            pair.step(x, torch.tensor(lengths), x[..., :3])
    pair.same()
