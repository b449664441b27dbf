"""The training forward of a Nemotron-H hybrid in plain torch, with the published parameter names.

Called by `train` and `evaluate`; a test holds it equal to transformers on the same weights.
It knows neither padding nor caches: rows of equal length in, logits out.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CHUNK = 32
"""Tokens per chunk of the scan: on one core a short one is faster, what is computed is the same."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the model; `pattern` as in the published configurations: M Mamba2, * attention, - MLP."""

    vocab: int = 512
    hidden: int = 128
    pattern: str = "M*-M*-"
    heads: int = 6
    head_dim: int = 32
    state: int = 32
    kernel: int = 4
    attention_heads: int = 4
    kv_heads: int = 2
    attention_dim: int = 32
    mlp: int = 256
    eps: float = 1e-5

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv(self) -> int:
        return self.inner + 2 * self.state


def ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int) -> Tensor:
    """Compute the chunked scan of state space duality (Dao & Gu 2024, listing 1), one group.

    x (b,l,h,p), dt (b,l,h), A (h), B and C (b,l,n); l is a multiple of chunk. Returns (b,l,h,p).
    """
    b, length, h, p = x.shape
    c = length // chunk
    inputs = (x * dt[..., None]).view(b, c, chunk, h, p).transpose(2, 3)  # b c h q p
    B, C = (t.view(b, c, 1, chunk, -1) for t in (B, C))  # b c 1 q n
    total = torch.cumsum((dt * A).view(b, c, chunk, h).transpose(2, 3), -1)  # b c h q
    hidden = torch.full((chunk, chunk), -math.inf, device=x.device).triu(1)
    decay = (total[..., :, None] - total[..., None, :] + hidden).exp()
    y = ((C @ B.mT) * decay) @ inputs
    if c > 1:
        states = B.mT @ (inputs * (total[..., -1:] - total).exp()[..., None])  # b c h n p
        state = torch.zeros_like(states[:, 0])
        before = []
        for index in range(c):
            before.append(state)
            state = state * total[:, index, :, -1, None, None].exp() + states[:, index]
        y = y + (C @ torch.stack(before, 1)) * total.exp()[..., None]
    return y.transpose(2, 3).reshape(b, length, h, p)


class Mamba(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.in_proj = nn.Linear(shape.hidden, shape.inner + shape.conv + shape.heads, bias=False)
        self.conv1d = nn.Conv1d(shape.conv, shape.conv, shape.kernel, groups=shape.conv)
        self.dt_bias = nn.Parameter(torch.empty(shape.heads))
        self.A_log = nn.Parameter(torch.empty(shape.heads))
        self.D = nn.Parameter(torch.ones(shape.heads))
        self.norm = nn.RMSNorm(shape.inner, eps=shape.eps)
        self.out_proj = nn.Linear(shape.inner, shape.hidden, bias=False)
        dt = torch.exp(torch.rand(shape.heads) * math.log(100) + math.log(1e-3))
        with torch.no_grad():
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))
            self.A_log.copy_(torch.linspace(1, shape.heads, shape.heads).log())

    def forward(self, hidden: Tensor) -> Tensor:
        shape = self.shape
        b, length, _ = hidden.shape
        gate, mixed, dt = torch.split(self.in_proj(hidden), [shape.inner, shape.conv, shape.heads], -1)
        padded = nn.functional.pad(mixed.transpose(1, 2), (shape.kernel - 1, 0))  # b C K-1+l
        out = self.conv1d(padded).transpose(1, 2)
        x, B, C = torch.split(nn.functional.silu(out), [shape.inner, shape.state, shape.state], -1)
        x = x.reshape(b, length, shape.heads, shape.head_dim)
        dt = nn.functional.softplus(dt + self.dt_bias)
        y = ssd(x, dt, -self.A_log.exp(), B, C, CHUNK) + self.D[:, None] * x
        result: Tensor = self.out_proj(self.norm(y.reshape(b, length, -1) * nn.functional.silu(gate)))
        return result


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.attention_heads * shape.attention_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.attention_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.attention_dim, bias=False)
        self.o_proj = nn.Linear(shape.attention_heads * shape.attention_dim, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        b, length, _ = hidden.shape
        q, k, v = (
            projection(hidden).view(b, length, -1, self.shape.attention_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: Tensor = self.o_proj(y.transpose(1, 2).reshape(b, length, -1))
        return result


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.down_proj(nn.functional.relu(self.up_proj(hidden)).square())
        return result


MIXERS = {"M": Mamba, "*": Attention, "-": Mlp}


class Block(nn.Module):
    def __init__(self, kind: str, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.mixer = MIXERS[kind](shape)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = hidden + self.mixer(self.norm(hidden))
        return result


class Backbone(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(kind, shape) for kind in shape.pattern)
        self.norm_f = nn.RMSNorm(shape.hidden, eps=shape.eps)

    def forward(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.embeddings(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        result: Tensor = self.norm_f(hidden)
        return result


class TinyHybrid(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.backbone = Backbone(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                nn.init.normal_(weight, std=(weight.shape[1] * len(shape.pattern)) ** -0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Map token ids (b,l) to logits (b,l,vocab); l is a multiple of CHUNK."""
        result: Tensor = self.lm_head(self.backbone(ids))
        return result
