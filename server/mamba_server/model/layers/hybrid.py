"""One model for all families: residual blocks of mixers and feed-forwards, as `ModelConfig` lists them.

Built once by the engine process; `forward` runs one step on the forward stream, writes states and KV into
the arena's views and returns logits. It never allocates cache memory and never reads a device tensor back.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mamba_api.choices import Quantization
from mamba_kernels.dispatch.backend import TRITON, Backend, backend_for
from mamba_kernels.precision import accumulator
from mamba_kernels.rope import frequencies, turns
from mamba_planner.families.support import why_not_served
from mamba_planner.model_config import ModelConfig
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.source import Progress, silent
from mamba_server.model.checkpoint.tensor_factors import row_factors
from mamba_server.model.checkpoint.tensor_names import NAMES
from mamba_server.model.checkpoint.tensor_source import TensorSource
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.forward_batch import ForwardBatch
from mamba_server.model.layers.attention import Attention, Turns
from mamba_server.model.layers.embedding import TokenEmbedding
from mamba_server.model.layers.gated_delta import GatedDeltaMixer
from mamba_server.model.layers.loader import Loader, Norm, Rows
from mamba_server.model.layers.mamba2 import Mamba2Mixer
from mamba_server.model.layers.mlp import Mlp
from mamba_server.model.layers.moe import Moe
from mamba_server.model.layers.parallel_mixers import ParallelMixers
from mamba_server.model.step_plans import StepPlans


@dataclass(frozen=True, slots=True)
class Block:
    """x + mixer(norm(x)). `cache_index` counts recurrent or attention layers, whichever it is."""

    norm: Norm
    mixer: Mamba2Mixer | GatedDeltaMixer | Attention | ParallelMixers | Mlp | Moe
    cache_index: int


class HybridModel:
    """Weights and forward of a whole model."""

    def __init__(
        self,
        config: ModelConfig,
        weights: TensorSource,
        *,
        device: torch.device,
        dtype: torch.dtype,
        batch_invariant: bool = False,
        quantization: Quantization = "none",
        backend: Backend | None = None,
    ) -> None:
        """Take the tensors out of `weights`. Raises UnsupportedModel, WeightsError.

        `backend`: what computes; None is the backend that the device and the environment ask for.
        """
        if (why := why_not_served(config)) is not None:
            raise UnsupportedModel(why)
        self.config, self.device, self.dtype = config, device, dtype
        self._batch_invariant = batch_invariant
        self.backend = backend or backend_for(device, dtype)
        library = self.backend.library
        if quantization != "none" and library is None:
            raise UnsupportedModel(
                f"quantization {quantization} needs the C++ kernels of a CPU, which do not compute here "
                f"({device.type}, {str(dtype).removeprefix('torch.')}): serve with --quantization none, or "
                "on a CPU with AVX2 as bfloat16 or float32"
            )
        loader = Loader(
            weights,
            device,
            dtype,
            batch_invariant=batch_invariant,
            operators=self.backend.operators,
            library=library,
            quantization=quantization,
            norm_offset=NAMES[config.family].norm_offset,
        )
        self.residual_dtype = torch.float32 if config.residual_in_fp32 and dtype.itemsize < 4 else dtype
        d = config.hidden_size
        self._names = NAMES[config.family]
        # The residual stream is held divided by the factor on what blocks add to it, so that nothing is
        # multiplied on the way: norms give the same, with an epsilon that is divided twice.
        factors = config.multipliers
        self.embedding_scale = factors.embedding / factors.residual
        self._norm_eps = config.norm_eps / factors.residual**2
        self.frequencies = _frequencies(config, device)
        """Of queries' and keys' rotation; None = attention has no positions."""
        self.embedding = TokenEmbedding(loader, self._names.embedding, config.vocab_size, d)
        self.blocks = self._blocks(loader)
        self.norm = loader.norm(self._names.norm, d, self._norm_eps)
        unused = self._names.unused
        if config.tie_embeddings:
            # The configuration wins over a head of its own in the files, as in the published code.
            head, unused = self.embedding.head(), (*unused, "lm_head.")
        else:
            head = loader.linear("lm_head", d, config.vocab_size, bias=False)
        # There are fewer hidden states than logits.
        self.head: Rows = head if factors.logits == 1 else lambda hidden: head(hidden * factors.logits)
        weights.finish(unused)
        self._attending = [found for block in self.blocks if (found := _attention(block.mixer)) is not None]

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        directory: Path,
        *,
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress = silent,
        batch_invariant: bool = False,
        quantization: Quantization = "none",
    ) -> "HybridModel":
        """Build the model from the files of `directory`. Raises UnsupportedModel, WeightsError."""
        weights = Weights(directory, progress)
        return cls(
            config, weights, device=device, dtype=dtype, batch_invariant=batch_invariant,
            quantization=quantization,
        )  # fmt: skip

    def forward(self, batch: ForwardBatch, cache: CacheViews) -> torch.Tensor:
        """Run one step. Returns float32 logits [L, vocab] of the rows `batch.logits_rows`."""
        return self.logits(self.hidden(batch, cache))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [r, vocab] of rows of `hidden`: apart, so that many rows can be scored in blocks."""
        with torch.inference_mode():
            logits = self.head(hidden)
            return logits.to(accumulator(logits.dtype))

    def hidden(self, batch: ForwardBatch, cache: CacheViews) -> torch.Tensor:
        """Run one step but for the head. Returns the normed hidden states [L, d] of the rows
        `batch.logits_rows`.

        The state of every sequence (convolution window and SSM part, from one depth) goes to its `slot_out`,
        checkpoints to `chunk_track` and `decode_track`, keys and values to `kv_row`.
        """
        with torch.inference_mode():
            plans = StepPlans.build(
                batch, recurrent=bool(cache.ssm), attention=bool(cache.kv), gathered=self._gathered
            )
            x, added = self._layers(batch.token_ids, plans, cache)
            rows = batch.logits_rows
            return self.norm(x[rows], None if added is None else added[rows])

    def decode(self, token_ids: torch.Tensor, plans: StepPlans, cache: CacheViews) -> torch.Tensor:
        """As `hidden` for one token of each sequence, by plans that stay on the device: [n, d] of all rows.

        Issues the same operators on the same memory whatever the sequences are. Raises NoHostRoutes where a
        kernel cannot take this model.
        """
        with torch.inference_mode():
            return self.norm(*self._layers(token_ids, plans, cache))

    @property
    def decodes_resident(self) -> bool:
        """Whether `decode` may be used: kernels alone compute, and none of them needs the host's integers."""
        return self.backend.name == TRITON and not self._batch_invariant and not self._gathered

    @property
    def _gathered(self) -> bool:
        """Whether plans have to say which keys are gathered."""
        return any(attention.gathers for attention in self._attending)

    def token_counts(self, most: int) -> list[int]:
        """Find the numbers of tokens, up to `most`, of which each is the least of a form that Triton compiles
        some kernel in; none where the number of tokens is no matter."""
        moe = self.config.moe
        if moe is None or self.backend.name != TRITON or self._batch_invariant:
            return []
        from mamba_kernels.moe.expert_blocks import row_counts_of_forms

        shared = moe.shared_intermediate > 0
        return row_counts_of_forms(most, moe.experts_per_token, moe.experts, shared=shared)

    @property
    def alignments(self) -> int:
        """After how many rows of a mixer's inputs one lies again at the same place between multiples of 16
        bytes: for each of these places Triton compiles the kernels of prompts once."""
        widths = []
        if (mamba := self.config.mamba) is not None:
            projected = mamba.inner + mamba.conv_dim + mamba.heads
            widths += [projected * self.dtype.itemsize, mamba.inner * self.dtype.itemsize]
        if (delta := self.config.gated_delta) is not None:
            values = delta.value_heads * delta.value_dim
            projected = delta.conv_dim + values + 2 * delta.value_heads
            widths += [projected * self.dtype.itemsize, values * self.dtype.itemsize]
        return max((16 // math.gcd(16, width) for width in widths), default=1)

    def _layers(
        self, token_ids: torch.Tensor, plans: StepPlans, cache: CacheViews
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The residual stream [T, d], and what the last layer adds to it."""
        x = self.embedding(token_ids).to(self.residual_dtype)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        rotation = None if self.frequencies is None else turns(plans.positions, self.frequencies)
        added: torch.Tensor | None = None
        for block in self.blocks:
            added = self._mix(block, block.norm(x, added), cache, plans, rotation)
        return x, added

    def _mix(
        self, block: Block, x: torch.Tensor, cache: CacheViews, plans: StepPlans, rotation: Turns | None
    ) -> torch.Tensor:
        match block.mixer:
            case Mamba2Mixer() | GatedDeltaMixer() as recurrent:
                return recurrent(x, cache.conv[block.cache_index], cache.ssm[block.cache_index], plans)
            case Attention() as attention:
                return attention(x, cache.kv[block.cache_index], plans, rotation)
            case ParallelMixers() as both:
                at = block.cache_index
                return both(x, cache.conv[at], cache.ssm[at], cache.kv[at], plans, rotation)
            case feed_forward:
                return feed_forward(x)

    def _blocks(self, loader: Loader) -> list[Block]:
        config, d = self.config, self.config.hidden_size
        blocks: list[Block] = []
        factors = row_factors(config, self._names)
        recurrent = attending = 0
        for index, kind in enumerate(config.layers):
            if (names := self._names.blocks.get(kind)) is None:
                raise UnsupportedModel(f"layer {index}: blocks of kind {kind!r} cannot be served yet")
            layer = config.checkpoint_layers[index] if config.checkpoint_layers else index
            here = loader.at_layer(layer, factors)
            inside = here.at(names.mixer)
            norm = here.norm(names.norm, d, self._norm_eps)
            if kind == "mamba" and config.mamba is not None:
                blocks.append(Block(norm, Mamba2Mixer(config.mamba, d, inside), recurrent))
                recurrent += 1
            elif kind == "attention" and config.attention is not None:
                attention = Attention(config.attention, d, inside, config.norm_eps)
                blocks.append(Block(norm, attention, attending))
                attending += 1
            elif kind == "gated_delta" and config.gated_delta is not None:
                # The norm behind its recurrence has a weight near one.
                delta = GatedDeltaMixer(config.gated_delta, d, replace(inside, norm_offset=0.0))
                blocks.append(Block(norm, delta, recurrent))
                recurrent += 1
            elif kind == "mamba_attention" and (both := self._parallel(here)) is not None:
                # Every layer has both: one index is that of either cache.
                blocks.append(Block(norm, both, recurrent))
                recurrent += 1
            elif kind == "mlp" and config.mlp is not None:
                blocks.append(Block(norm, Mlp(config.mlp, d, self._names, inside), -1))
            elif kind == "moe" and config.moe is not None and self._names.moe is not None:
                blocks.append(Block(norm, Moe(config.moe, d, self._names.moe, here), -1))
            else:
                raise UnsupportedModel(f"layer {index}: blocks of kind {kind!r} cannot be served yet")
        return blocks

    def _parallel(self, layer: Loader) -> ParallelMixers | None:
        config, names = self.config, self._names.parallel
        if config.mamba is None or config.attention is None or names is None:
            return None
        d = config.hidden_size
        return ParallelMixers(
            Mamba2Mixer(config.mamba, d, layer.at(names.mamba)),
            Attention(config.attention, d, layer.at(names.attention)),
        )


def _attention(mixer: object) -> Attention | None:
    """Its attention, if it has some."""
    if isinstance(mixer, ParallelMixers):
        return mixer.attention
    return mixer if isinstance(mixer, Attention) else None


def _frequencies(config: ModelConfig, device: torch.device) -> torch.Tensor | None:
    attention = config.attention
    if attention is None or attention.rope_theta is None:
        return None
    return frequencies(attention.rope_theta, attention.rotated, device)
