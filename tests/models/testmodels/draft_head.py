"""The published definition of heads for drafts in float64, over a whole text at once.

It shares no code with the engine and keeps nothing from call to call. Pair p joins token p with the hidden
state of token p - 1; the first token is in no pair, and has a key and a value of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensors = dict[str, torch.Tensor]


class ReferenceHead:
    """Head of a checkpoint. `tensors`: all of the checkpoint, float64; `config`: that of the text model."""

    def __init__(self, tensors: Tensors, config: dict[str, Any]) -> None:
        self.config = config
        self.nemotron = config["model_type"] == "nemotron_h"
        self.offset = 0.0 if self.nemotron else 1.0
        self.eps = config["layer_norm_epsilon"] if self.nemotron else config["rms_norm_eps"]
        self.head = {name.removeprefix("mtp."): t for name, t in tensors.items() if name.startswith("mtp.")}
        of_model = {name: t for name, t in tensors.items() if not name.startswith("mtp.")}
        self.embedding = next(
            t for name, t in of_model.items() if name.endswith(("embed_tokens.weight", "embeddings.weight"))
        )
        self.output = of_model.get("lm_head.weight", self.embedding)

    def foresee(
        self, hidden: torch.Tensor, tokens: list[int], count: int
    ) -> tuple[list[int], list[torch.Tensor]]:
        """Return `count` tokens that may follow `tokens`, and the hidden state that foresees each.

        hidden: [len(tokens) - 1, d] of the model behind its last norm.
        """
        text, foreseen, states = list(tokens), [], []
        for _ in range(count):
            state = self.hidden(hidden, text)[-1]
            token = int((self.output @ state).argmax())
            states.append(state)
            foreseen.append(token)
            text.append(token)
            hidden = torch.cat([hidden, state[None]])
        return foreseen, states

    def hidden(self, hidden: torch.Tensor, text: list[int]) -> torch.Tensor:
        """Return the head's hidden states of all pairs of a text of one token more than `hidden` has rows."""
        a = self.head
        embedded = self.embedding[torch.tensor(text[1:])]
        if self.nemotron:
            parts = self._norm(embedded, "layers.0.enorm"), self._norm(hidden, "layers.0.hnorm")
            x = torch.cat(parts, 1) @ a["layers.0.eh_proj.weight"].T
            x = x + self._attend(self._norm(x, "layers.0.norm"), "layers.0.mixer.")
            inner = self._norm(x, "layers.1.norm") @ a["layers.1.mixer.up_proj.weight"].T
            x = x + F.relu(inner).square() @ a["layers.1.mixer.down_proj.weight"].T
            return self._norm(x, "layers.1.final_layernorm")
        parts = self._norm(embedded, "pre_fc_norm_embedding"), self._norm(hidden, "pre_fc_norm_hidden")
        x = torch.cat(parts, 1) @ a["fc.weight"].T
        x = x + self._attend(self._norm(x, "layers.0.input_layernorm"), "layers.0.self_attn.")
        x = x + self._feed_forward(self._norm(x, "layers.0.post_attention_layernorm"), "layers.0.mlp.")
        return self._norm(x, "norm")

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.head[f"{name}.weight"] + self.offset
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * weight

    def _attend(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        a, config, n = self.head, self.config, len(x)
        width, heads = config["head_dim"], config["num_attention_heads"]
        query, key, value = (x @ a[f"{prefix}{part}_proj.weight"].T for part in "qkv")
        gate = None
        if not self.nemotron:
            query, gate = query.view(n, heads, 2 * width).split(width, 2)
        query, key, value = (part.reshape(n, -1, width) for part in (query, key, value))
        if gate is not None:
            query, key = self._norm(query, f"{prefix}q_norm"), self._norm(key, f"{prefix}k_norm")
            query, key = self._rotate(query), self._rotate(key)
        share = heads // key.shape[1]
        key, value = (
            torch.cat([torch.zeros(1, *part.shape[1:]).double(), part]).repeat_interleave(share, 1)
            for part in (key, value)
        )
        scores = torch.einsum("qhd,khd->hqk", query, key) * width**-0.5
        scores = scores.masked_fill(torch.ones(n, n + 1).triu(2).bool(), -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(n, -1)
        if gate is not None:
            mixed = mixed * gate.reshape(n, -1).sigmoid()
        return mixed @ a[f"{prefix}o_proj.weight"].T

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        rope = self.config["rope_parameters"]
        rotated = int(self.config["head_dim"] * rope.get("partial_rotary_factor", 0.25))
        # As in training, whose frequencies and angles are float32.
        frequencies = rope["rope_theta"] ** -(torch.arange(0, rotated, 2).float() / rotated)
        # Of the hidden state's token: attention sees differences alone.
        angles = (torch.arange(len(x)).float()[:, None] * frequencies).double()[:, None]
        first, second, rest = x.split([rotated // 2, rotated // 2, x.shape[-1] - rotated], -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)

    def _feed_forward(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        a = self.head

        def gated(prefix: str, x: torch.Tensor) -> torch.Tensor:
            inner = F.silu(x @ a[f"{prefix}gate_proj.weight"].T) * (x @ a[f"{prefix}up_proj.weight"].T)
            return inner @ a[f"{prefix}down_proj.weight"].T

        if f"{prefix}gate.weight" not in a:
            return gated(prefix, x)
        scores = (x @ a[f"{prefix}gate.weight"].T).softmax(-1)
        chosen, experts = scores.topk(self.config["num_experts_per_tok"])
        chosen = chosen / chosen.sum(-1, keepdim=True)
        rows = [
            sum(
                weight * gated(f"{prefix}experts.{expert}.", row[None])[0]
                for weight, expert in zip(weights, numbers.tolist(), strict=True)
            )
            for row, weights, numbers in zip(x, chosen, experts, strict=True)
        ]
        shared = (x @ a[f"{prefix}shared_expert_gate.weight"].T).sigmoid()
        return torch.stack(rows) + shared * gated(f"{prefix}shared_expert.", x)


def model_states(directory: str) -> Callable[[list[int]], torch.Tensor]:
    """Return transformers' hidden states of a text behind the last norm, [tokens, d] float64."""
    from transformers import AutoModelForCausalLM

    # Only its plain loop over experts computes in float64.
    options: dict[str, Any] = {"dtype": torch.float64, "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(directory, **options).eval().base_model

    def states(tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]

    return states
