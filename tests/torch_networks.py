"""Networks as users of PyTorch write them, of any width; small ones with a batch and a loss."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from example_networks import load
from torch import nn
from torch.nn import functional as F

from minigraph.bench import networks, torch_peer

# ---------------------------------------------------------------- networks of images


RESNETS = load("torch", "model")
LIBRARY = networks.without_dropout(torch_peer.LIBRARY)


class AlexNet(nn.Module):
    """AlexNet of `torchvision.models`."""

    def __init__(self, classes=1000, width=64, hidden=4096, dropout=0.5):
        super().__init__()
        self.features = nn.Sequential(
            *[nn.Conv2d(3, width, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)],
            *[nn.Conv2d(width, 3 * width, 5, padding=2), nn.ReLU(inplace=True)],
            *[nn.MaxPool2d(3, 2), nn.Conv2d(3 * width, 6 * width, 3, padding=1)],
            *[nn.ReLU(inplace=True), nn.Conv2d(6 * width, 4 * width, 3, padding=1)],
            *[nn.ReLU(inplace=True), nn.Conv2d(4 * width, 4 * width, 3, padding=1)],
            *[nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)],
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            *[nn.Dropout(dropout), nn.Linear(4 * width * 36, hidden), nn.ReLU(inplace=True)],
            *[nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(inplace=True)],
            nn.Linear(hidden, classes),
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2021), of PyTorch's encoder layers."""

    def __init__(self, classes=1000, size=224, patch=16, width=768, depth=12, heads=12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.encoder(x))[:, 0])


# ---------------------------------------------------------------- networks of tokens


class CausalSelfAttention(nn.Module):
    """Attention written out, with the mask as a buffer, as in minGPT."""

    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        mask = torch.tril(torch.ones(context, context)).view(1, 1, context, context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c)
        return self.c_proj(y)


class GPTBlock(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), CausalSelfAttention(width, heads, context)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class GPT(nn.Module):
    """GPT-2 (Radford et al., 2019), whose scores have the weights of the embedding."""

    def __init__(self, tokens, context=1024, width=768, depth=12, heads=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(GPTBlock(width, heads, context) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, tokens, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, indices):
        places = torch.arange(indices.size(1), device=indices.device).unsqueeze(0)
        x = self.wte(indices) + self.wpe(places)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def token_loss(scores, targets):
    return F.cross_entropy(scores.view(-1, scores.size(-1)), targets.view(-1), ignore_index=-1)


class Encoder(nn.Module):
    """A classifier of texts, of which 0 fills the end, of PyTorch's transformer encoder."""

    def __init__(self, tokens, classes, width=512, depth=6, heads=8):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        empty = tokens == 0
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=empty)
        x = x.masked_fill(empty.unsqueeze(-1), 0.0)
        return self.head(x.sum(1) / (~empty).sum(1, keepdim=True))


class LSTMClassifier(nn.Module):
    """A classifier of texts by the last states of an LSTM in both directions."""

    def __init__(self, tokens, classes, width=256, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens):
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.head(torch.cat([hidden[-2], hidden[-1]], dim=1))


# ---------------------------------------------------------------- small ones


class Small(NamedTuple):
    """A network that is quick to train.

    make   takes nothing and returns it
    batch  returns its inputs and the targets
    loss   takes the scores and the targets
    """

    make: Callable
    batch: Callable
    loss: Callable = F.cross_entropy


CLASSES, TOKENS = 5, 11
# The last batch norms have 16 values a channel.  With images of half the size they have four: then
# PyTorch's own losses are 1 % apart after ten steps from weights that are 1e-16 apart.
LARGER = 64


def images(size, labels=()):
    return lambda: (torch.randn(4, 3, size, size), torch.randint(CLASSES, (4, *labels)))


def texts():
    rows = torch.randint(1, TOKENS, (4, 7))
    rows[0, 5:] = rows[2, 3:] = 0
    return rows, torch.randint(CLASSES, (4,))


def rows_of_tokens():
    rows = torch.randint(TOKENS, (3, 9))
    targets = rows[:, 1:].clone()
    targets[1, 6:] = -1
    return rows[:, :-1], targets


SMALL = {
    "resnet of two convolutions a block": Small(
        lambda: RESNETS.ResNet(RESNETS.BasicBlock, (2, 1, 1, 1), CLASSES, width=4), images(32)
    ),
    "resnet of bottlenecks": Small(
        lambda: RESNETS.ResNet(RESNETS.Bottleneck, (1, 2, 1, 1), CLASSES, width=4), images(LARGER)
    ),
    "alexnet": Small(lambda: AlexNet(CLASSES, width=4, hidden=16, dropout=0.0), images(LARGER)),
    "mobilenetv2": Small(
        lambda: networks.mobilenetv2(LIBRARY, ((1, 4, 1, 1), (6, 4, 2, 1))), images(32)
    ),
    "unet": Small(lambda: networks.unet(LIBRARY, 4, 2, CLASSES), images(16, (16, 16))),
    "lstm": Small(lambda: LSTMClassifier(TOKENS, CLASSES, width=8), texts),
    "encoder": Small(lambda: Encoder(TOKENS, CLASSES, width=16, depth=2, heads=2), texts),
    "gpt": Small(
        lambda: GPT(TOKENS, context=10, width=16, depth=2, heads=2), rows_of_tokens, token_loss
    ),
    "vit": Small(lambda: ViT(CLASSES, size=16, patch=4, width=16, depth=2, heads=2), images(16)),
}
