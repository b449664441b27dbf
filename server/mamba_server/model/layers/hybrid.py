"""One model for all families: residual blocks of mixers and feed-forwards, as `ModelConfig` lists them.

The engine process builds one. `forward` runs one step on the forward stream, writes states and KV into the
arena's views and returns logits. It never allocates cache memory and never reads a device tensor back.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from mamba_api.choices import Quantization
from mamba_kernels.cpu.packed_linear import PackedLinear
from mamba_kernels.cpu.short_conv import PARTS
from mamba_kernels.dispatch.backend import TRITON, Backend, backend_for
from mamba_kernels.precision import accumulator
from mamba_kernels.rope import turns
from mamba_kernels.transfer import to_device
from mamba_planner.arithmetic import mixer_inputs
from mamba_planner.families.registry import why_not_served
from mamba_planner.model_config import LayerKind, ModelConfig
from mamba_server.model.adapters.adapter_bank import AdapterBank
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.source import Progress, silent
from mamba_server.model.checkpoint.tensor_factors import Factors, row_factors
from mamba_server.model.checkpoint.tensor_names import NAMES, BlockNames
from mamba_server.model.checkpoint.tensor_source import TensorSource
from mamba_server.model.checkpoint.weight_files import DRAFT_HEADS
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.forward_batch import ForwardBatch, HostBatch
from mamba_server.model.hidden_rows import HiddenPlan
from mamba_server.model.layers.attention import Attention, Turns
from mamba_server.model.layers.draft_head import DraftHead
from mamba_server.model.layers.fp8 import fp8_backend
from mamba_server.model.layers.gated_delta import GatedDeltaMixer
from mamba_server.model.layers.latent_attention import LatentAttention
from mamba_server.model.layers.loader import Loader, Norm, Rows
from mamba_server.model.layers.mamba2 import Mamba2Mixer
from mamba_server.model.layers.mlp import Mlp
from mamba_server.model.layers.moe import Moe
from mamba_server.model.layers.parallel_mixers import ParallelMixers
from mamba_server.model.layers.shared_transformer import SharedMamba, SharedTransformers
from mamba_server.model.layers.short_conv import ShortConvMixer
from mamba_server.model.replay import ReplayPlan
from mamba_server.model.rotary import rotation_of
from mamba_server.model.step_plans import StepPlans

Mixer = Mamba2Mixer | GatedDeltaMixer | ShortConvMixer | Attention | ParallelMixers | SharedMamba | Mlp | Moe


@dataclass(frozen=True, slots=True)
class Block:
    """A residual block: x + mixer(norm(x)), or x + norm(mixer(x))."""

    norm: Norm
    mixer: Mixer
    cache_index: int
    """Number of the layer among recurrent layers, or among attention layers; -1 for a feed-forward."""
    norm_after: bool
    """Whether the norm is applied to the mixer's result instead of its input."""
    kv_index: int = -1
    """Number of the layer among those with keys and values, of a recurrent layer that has them, too."""


class TokenEmbedding:
    """Looks up the rows of tokens, and multiplies by the same matrix as the model's head.

    The matrix [vocabulary, d] is in memory once: packed if the C++ kernels compute.
    """

    def __init__(self, loader: Loader, name: str, size: int, width: int) -> None:
        self._loader = loader
        weight = loader.tensor(name, size, width)
        self.weight = weight if loader.library is None else loader.pack(weight)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows [T, d] of ids: [T]."""
        if isinstance(self.weight, torch.Tensor):
            return F.embedding(ids, self.weight)
        return self.weight.rows(ids)

    def head(self) -> Rows:
        """Return the product with the matrix: [T, d] -> [T, vocabulary]."""
        if isinstance(self.weight, torch.Tensor):
            return self._loader.plain(self.weight, None)
        assert self._loader.library is not None
        return PackedLinear(self._loader.library, self.weight, None)


def _has_four_bits(
    backend: Backend, device: torch.device, dtype: torch.dtype, quantization: Quantization
) -> bool:
    """Return whether operators multiply by matrices of four bits; not with fp8, where all are FP8.

    Raises UnsupportedModel if nothing computes with the `quantization` of matrices.
    """
    if quantization == "fp8":
        return False
    four_bits = backend.library is None and (device.type == "cuda" or backend.name == TRITON)
    if quantization == "none" or backend.library is not None or (four_bits and quantization == "int4"):
        return four_bits
    on_gpu = " fp8 or int4 on a GPU," if device.type == "cuda" else ""
    raise UnsupportedModel(
        f"quantization {quantization} needs the C++ kernels of a CPU, which are not used here "
        f"({device.type}, {str(dtype).removeprefix('torch.')}): serve with --quantization none,"
        f"{on_gpu} or as bfloat16 or float32 on a CPU with AVX2"
    )


class HybridModel:
    """Computes a whole model: embedding, residual blocks, head. The caches that it is given are written."""

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
        adapters: AdapterBank | None = None,
    ) -> None:
        """Take the tensors out of `weights`. Raises UnsupportedModel, WeightsError.

        `dtype` is the type of activations. `backend` are the kernels to use; None selects them by device and
        environment. `adapters` is the memory for adapters; None = the model has none.
        """
        if (why := why_not_served(config)) is not None:
            raise UnsupportedModel(why)
        self.config, self.device, self.dtype = config, device, dtype
        self._batch_invariant = batch_invariant
        self.adapters = adapters
        self.backend = backend or backend_for(device, dtype)
        if quantization == "fp8":
            self.backend = fp8_backend(self.backend, device, batch_invariant=batch_invariant)
        loader = Loader(
            weights,
            device,
            dtype,
            batch_invariant=batch_invariant,
            operators=self.backend.operators,
            library=self.backend.library,
            quantization=quantization,
            four_bits=_has_four_bits(self.backend, device, dtype, quantization),
            norm_offset=NAMES[config.family].norm_offset,
            adapters=adapters,
        )
        self._four_bits, self._fits = loader.four_bits, quantization == "int4"
        self.residual_dtype = torch.float32 if config.residual_in_fp32 and dtype.itemsize < 4 else dtype
        d = config.hidden_size
        self._names = NAMES[config.family]
        # The residual stream is stored divided by the factor on blocks' results, which saves the
        # multiplications: norms return the same rows with an epsilon divided by the factor's square.
        factors = config.multipliers
        self.embedding_scale = factors.embedding / factors.residual
        self._norm_eps = config.norm_eps / factors.residual**2
        self.rotation = rotation_of(config.attention, device)
        """Rotation of queries and keys; None = attention has no positions."""
        self.embedding = TokenEmbedding(loader.of_vocabulary(), self._names.embedding, config.vocab_size, d)
        self.blocks = self._blocks(loader)
        self.norm = loader.norm(self._names.norm, d, self._norm_eps)
        unused = (*self._names.unused, *self._unused)
        if config.tie_embeddings:
            # A separate head in the files is ignored, as in the published code.
            head, unused = self.embedding.head(), (*unused, "lm_head.")
        else:
            head = loader.of_vocabulary().linear("lm_head", d, config.vocab_size, bias=False)
        # Hidden states are scaled instead of logits, because they have fewer elements.
        self.head: Rows = head if factors.logits == 1 else lambda hidden: head(hidden * factors.logits)
        self.draft_head: DraftHead | None = None
        """Head of the checkpoint that drafts; None = it has none, or it is not used."""
        if config.draft_head:
            self.draft_head = DraftHead(config, self._names, loader, self.embedding, self._norm_eps)
            unused = tuple(prefix for prefix in unused if prefix != DRAFT_HEADS)
        weights.finish(unused)
        attentions = (_attention(block.mixer) for block in self.blocks)
        self._attentions = [attention for attention in attentions if attention is not None]

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
        adapters: AdapterBank | None = None,
    ) -> "HybridModel":
        """Build the model from the files of `directory`. Raises UnsupportedModel, WeightsError.

        `dtype` is the type of activations. `adapters` is the memory for adapters; None = the model has none.
        """
        weights = Weights(directory, progress, heads=config.draft_head)
        return cls(
            config, weights, device=device, dtype=dtype, batch_invariant=batch_invariant,
            quantization=quantization, adapters=adapters,
        )  # fmt: skip

    def forward(self, batch: ForwardBatch, cache: CacheViews) -> torch.Tensor:
        """Run one step; return float32 logits [L, vocab] of the rows `batch.logits_rows`."""
        return self.logits(self.hidden(batch, cache))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [r, vocab] of r rows of `hidden`; callers score many rows in blocks."""
        with torch.inference_mode():
            logits = self.head(hidden)
            return logits.to(accumulator(logits.dtype))

    def hidden(self, batch: ForwardBatch, cache: CacheViews) -> torch.Tensor:
        """Run one step without the head; return the normed hidden states [L, d] of `batch.logits_rows`.

        The state of every sequence (convolution window and SSM part, of the same depth) is written to its
        `slot_out`, checkpoints to `chunk_track` and `decode_track`, keys and values to `kv_row`.
        """
        with torch.inference_mode():
            plans = StepPlans.build(
                batch,
                recurrent=bool(cache.ssm),
                attention=bool(cache.kv),
                gathered=self._gathered,
                memory=cache.replay,
            )
            x, added = self._layers(batch.token_ids, plans, cache)
            rows = batch.logits_rows
            hidden = self.norm(x[rows], None if added is None else added[rows])
            if self.draft_head is not None and cache.hidden is not None:
                self.follow(self.norm(x, added), batch.token_ids, batch.host, cache, batch.page_table)
            return hidden

    def follow(
        self,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        host: HostBatch,
        cache: CacheViews,
        page_table: torch.Tensor,
    ) -> None:
        """Let the head for drafts read all tokens of a step, whose normed hidden states are [T, d]."""
        assert self.draft_head is not None
        assert cache.hidden is not None
        with torch.inference_mode():
            plan = HiddenPlan.build(host, cache.hidden, cache.kv[-1].shape[2], hidden.device)
            positions = to_device(torch.from_numpy(host.positions), hidden.device)
            self.draft_head.follow(hidden, token_ids, plan, cache, page_table, self._turns(positions))

    def draft(
        self,
        token_ids: torch.Tensor,
        preceding: torch.Tensor,
        plans: list[StepPlans],
        cache: CacheViews,
    ) -> list[torch.Tensor]:
        """Return the tokens that the head foresees behind `token_ids` [n], one tensor for each of `plans`.

        `preceding` are the model's hidden states of the tokens before, [n, d]. Each plan has the sequences
        that draft another token, which are the first ones of the plan before.
        """
        assert self.draft_head is not None
        foreseen = []
        with torch.inference_mode():
            for each in plans:
                token_ids, preceding = token_ids[: each.tokens], preceding[: each.tokens]
                turning = self._turns(each.positions)
                preceding = self.draft_head.step(token_ids, preceding, each, cache, turning)
                token_ids = self.head(preceding).argmax(1).to(torch.int32)
                foreseen.append(token_ids)
        return foreseen

    def decode(self, token_ids: torch.Tensor, plans: StepPlans, cache: CacheViews) -> torch.Tensor:
        """Compute one token of each sequence by plans that stay on the device; return [n, d] of all rows.

        The same operators run on the same memory, whatever the sequences are. Raises NoHostRoutes if a kernel
        does not support this model.
        """
        with torch.inference_mode():
            return self.norm(*self._layers(token_ids, plans, cache))

    def absorb(self, replay: ReplayPlan, cache: CacheViews) -> None:
        """Compute the accepted drafts of a plan into the live slots, outside a step."""
        with torch.inference_mode():
            for block in self.blocks:
                mixer = block.mixer
                if isinstance(mixer, ParallelMixers | SharedMamba):
                    mixer = mixer.mamba
                if isinstance(mixer, Mamba2Mixer | GatedDeltaMixer | ShortConvMixer):
                    index = block.cache_index
                    mixer.absorb(cache.conv[index], cache.ssm[index], replay.memory.ring[index], replay)

    @property
    def decodes_resident(self) -> bool:
        """Whether `decode` may be used: only Triton kernels compute, and none needs the host's integers."""
        return self.backend.name == TRITON and not self._batch_invariant and not self._gathered

    @property
    def _gathered(self) -> bool:
        """Whether plans must list the keys that torch gathers, for lack of a kernel that reads the pages."""
        return any(attention.gathers for attention in self._attentions)

    @property
    def head_gathers(self) -> bool:
        """Whether plans of the head for drafts must list the keys that torch gathers."""
        return self.draft_head is not None and self.draft_head.attention.gathers

    def token_counts(self, most: int) -> list[int]:
        """Return the numbers of tokens, up to `most`, at which Triton compiles another variant of a kernel.

        The list is empty if no kernel depends on the number of tokens.
        """
        if self.backend.name != TRITON or self._batch_invariant:
            return []
        counts = set[int]()
        if (moe := self.config.moe) is not None:
            from mamba_kernels.moe.expert_blocks import row_counts_of_forms

            # Beside experts of a latent width, a shared expert has products of its own.
            shared = moe.shared_intermediate > 0 and moe.latent is None
            counts.update(row_counts_of_forms(most, moe.experts_per_token, moe.experts, shared=shared))
        if self._four_bits and (self._fits or self.config.stored is not None):
            from mamba_kernels.four_bit.triton import row_counts_of_tiles

            counts.update(row_counts_of_tiles(most))
        return sorted(counts)

    @property
    def alignments(self) -> int:
        """Number of rows of a mixer's inputs after which the offset from a multiple of 16 bytes repeats.

        Triton compiles the kernels of prompts once for each of these offsets.
        """
        widths = []
        if (mamba := self.config.mamba) is not None:
            projected = mamba.inner + mamba.conv_dim + mamba.heads
            widths += [projected * self.dtype.itemsize, mamba.inner * self.dtype.itemsize]
        if (delta := self.config.gated_delta) is not None:
            values, projected = delta.value_heads * delta.value_dim, mixer_inputs(self.config)
            widths += [projected * self.dtype.itemsize, values * self.dtype.itemsize]
        if (short := self.config.short_conv) is not None:
            widths.append(PARTS * short.channels * self.dtype.itemsize)
        return max((16 // math.gcd(16, width) for width in widths), default=1)

    def _layers(
        self, token_ids: torch.Tensor, plans: StepPlans, cache: CacheViews
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the residual stream [T, d], and the last layer's result, which is not added to it yet."""
        x = self.embedding(token_ids).to(self.residual_dtype)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        rotation = self._turns(plans.positions)
        added: torch.Tensor | None = None
        # The embedding's rows, while the stream goes on.
        embedded = x.clone() if self.config.shared is not None else x
        for block in self.blocks:
            if isinstance(block.mixer, SharedMamba):
                if added is not None:
                    x.add_(added)
                shared = block.mixer.shared(x, embedded, cache.kv[block.kv_index], plans, rotation)
                added = self._mix(block, block.norm(shared.add_(x), None), cache, plans, rotation)
                continue
            if not block.norm_after:
                added = self._mix(block, block.norm(x, added), cache, plans, rotation)
                continue
            if added is not None:
                x.add_(added)
            added = block.norm(self._mix(block, x.to(self.dtype), cache, plans, rotation), None)
        return x, added

    def _turns(self, positions: torch.Tensor) -> Turns | None:
        """Return the rotation of queries and keys at positions [T]; None = attention has no positions."""
        angles = self.rotation
        return None if angles is None else turns(positions, angles.frequencies, angles.factor)

    def _mix(
        self, block: Block, x: torch.Tensor, cache: CacheViews, plans: StepPlans, rotation: Turns | None
    ) -> torch.Tensor:
        ring = cache.rings if plans.ring is not None else None
        if plans.replay is not None:
            ring = plans.replay.memory.ring
        match block.mixer:
            case SharedMamba(mamba=recurrent) | (
                Mamba2Mixer() | GatedDeltaMixer() | ShortConvMixer() as recurrent
            ):
                index = block.cache_index
                inputs = None if ring is None else ring[index]
                return recurrent(x, cache.conv[index], cache.ssm[index], plans, inputs)
            case Attention() as attention:
                return attention(x, cache.kv[block.cache_index], plans, rotation)
            case ParallelMixers() as both:
                index = block.cache_index
                inputs = None if ring is None else ring[index]
                return both(x, cache.conv[index], cache.ssm[index], cache.kv[index], plans, rotation, inputs)
            case feed_forward:
                return feed_forward(x)

    def _blocks(self, loader: Loader) -> list[Block]:
        """Load the blocks. Raises UnsupportedModel, WeightsError."""
        config = self.config
        blocks: list[Block] = []
        factors = row_factors(config, self._names)
        recurrent = attention = uses = 0
        shared = self._shared_transformers(loader, factors)
        self._unused = () if shared is None else shared.prefixes
        for index, kind in enumerate(config.layers):
            if (names := self._names.blocks.get(kind)) is None:
                raise _unsupported_block(index, kind)
            number = config.checkpoint_layers[index] if config.checkpoint_layers else index
            layer = loader.at_layer(number, factors)
            after = index in config.norm_after
            norm_name = layer.first_of(names.norms_after if after else names.norms)
            # Rows of experts are not rounded, and what a later norm returns is added.
            multiplied = kind != "moe" and not after
            norm = layer.norm(norm_name, config.hidden_size, self._norm_eps, before_product=multiplied)
            inside = self._inside(layer, names)
            mixer = self._mixer(kind, layer, inside)
            match mixer:
                case Mamba2Mixer() if kind == "shared_mamba" and shared is not None:
                    both = SharedMamba(shared.use(uses), mixer)
                    blocks.append(Block(norm, both, recurrent, after, attention))
                    recurrent, attention, uses = recurrent + 1, attention + 1, uses + 1
                case None:
                    raise _unsupported_block(index, kind)
                case Mlp() | Moe():
                    blocks.append(Block(norm, mixer, -1, after))
                case Attention():
                    blocks.append(Block(norm, mixer, attention, after))
                    attention += 1
                case Mamba2Mixer() | GatedDeltaMixer() | ShortConvMixer() | ParallelMixers():
                    # If layers have parallel mixers, all have: the index is that of either cache.
                    blocks.append(Block(norm, mixer, recurrent, after))
                    recurrent += 1
        return blocks

    def _inside(self, layer: Loader, names: BlockNames) -> Loader:
        """Return the loader of a block's tensors, except its norm, by the prefix that the checkpoint uses."""
        down = f"{self._names.down_proj}.weight"
        places = [layer.at(name) for name in (*names.other_mixers, names.mixer)]
        inside = next((place for place in places if place.has(down)), places[-1])
        if layer.adapters is not None:
            for place in places:
                if place.prefix != inside.prefix:
                    layer.adapters.also_call(inside.prefix, place.prefix)
        return inside

    def _mixer(self, kind: LayerKind, layer: Loader, inside: Loader) -> Mixer | None:
        """Load the mixer of a block; None if blocks of this kind cannot be served.

        `layer` is the loader of the block's layer, and `inside` the loader of the mixer's tensors.
        """
        config, d = self.config, self.config.hidden_size
        if kind in ("mamba", "shared_mamba") and config.mamba is not None:
            return Mamba2Mixer(config.mamba, d, inside)
        if kind == "attention" and config.attention is not None:
            if (latent := config.attention.latent) is not None:
                return LatentAttention(config.attention, latent, d, inside)
            return Attention(config.attention, d, inside, config.norm_eps, self._names.attention)
        if kind == "short_conv" and config.short_conv is not None:
            return ShortConvMixer(config.short_conv, d, inside)
        if kind == "gated_delta" and config.gated_delta is not None:
            # The weights of the norm after the recurrence are near one, and have no offset.
            return GatedDeltaMixer(config.gated_delta, d, self._names.delta, replace(inside, norm_offset=0.0))
        if kind == "mamba_attention":
            return self._parallel(layer)
        if kind == "mlp" and config.mlp is not None:
            return Mlp(config.mlp, d, self._names, inside)
        if kind == "moe" and config.moe is not None and self._names.moe is not None:
            return Moe(config.moe, d, self._names, layer)
        return None

    def _shared_transformers(self, loader: Loader, factors: Factors) -> SharedTransformers | None:
        """Load the transformer blocks that layers share; None = the model has none."""
        config, names = self.config, self._names.shared
        if config.shared is None or config.attention is None or config.mlp is None or names is None:
            return None
        layers = [
            loader.at_layer(index, factors)
            for index, kind in enumerate(config.layers)
            if kind == "shared_mamba"
        ]
        return SharedTransformers(
            config.shared, config.attention, config.mlp, config.hidden_size, self._norm_eps, names, layers
        )

    def _parallel(self, layer: Loader) -> ParallelMixers | None:
        config, names = self.config, self._names.parallel
        if config.mamba is None or config.attention is None or names is None:
            return None
        d = config.hidden_size
        return ParallelMixers(
            Mamba2Mixer(config.mamba, d, layer.at(names.mamba)),
            Attention(config.attention, d, layer.at(names.attention)),
        )


def _unsupported_block(index: int, kind: LayerKind) -> UnsupportedModel:
    return UnsupportedModel(f"layer {index}: this version does not support blocks of kind {kind!r}")


def _attention(mixer: object) -> Attention | None:
    """Return the attention of a mixer, if it has one."""
    if isinstance(mixer, ParallelMixers | SharedMamba):
        return mixer.attention
    return mixer if isinstance(mixer, Attention) else None
