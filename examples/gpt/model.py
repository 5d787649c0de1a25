"""A GPT: a transformer that predicts the next character of a text (Radford et al., 2019)."""

from minigraph import nn, ops


class GPT(nn.Module):
    """Map tokens (n, t), t up to `context`, to scores of the next tokens (n, vocabulary, t)."""

    def __init__(self, vocabulary, context=64, layers=4, width=128, heads=4):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens):
        t = tokens.shape[1]
        x = self.tokens(tokens) + self.positions.weight[:t]
        return self.scores(self.norm(self.blocks(x))).swapaxes(1, 2)


class Block(nn.Module):
    """Attention, then an MLP of each token; both normalise their input and add to it."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CausalAttention(nn.Module):
    """Self-attention of rows (n, t, width), where no token sees later ones."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, t, width = x.shape
        qkv = self.qkv(x).reshape(n, t, 3, self.heads, width // self.heads)
        q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
        y = ops.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.swapaxes(1, 2).reshape(n, t, width))
