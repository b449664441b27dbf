"""Grouped-query attention over paged keys and values. `HybridModel` calls each layer once per step."""

import logging
from copy import copy

import torch

from mamba_kernels.activate import Function
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.paged_decode import MOST_HEAD_DIM, PagedDecoder
from mamba_kernels.cpu.paged_extend import PagedExtender
from mamba_kernels.cpu.row_operations import RowGate
from mamba_kernels.dispatch.kernel_or_reference import computes_by_reference
from mamba_kernels.dispatch.operators import REFERENCE
from mamba_kernels.dispatch.signatures import PagedAttention
from mamba_kernels.fp8_pages import Pages
from mamba_kernels.invariant import attention_by_row
from mamba_planner.model_config import AttentionConfig
from mamba_server.model.checkpoint.mapped_pages import give_back
from mamba_server.model.checkpoint.tensor_names import USUAL_ATTENTION, AttentionNames
from mamba_server.model.layers.loader import Loader, Norm, Rows, rows_of
from mamba_server.model.step_plans import StepPlans

log = logging.getLogger(__name__)

Turns = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of a step's rows, [T, h] float32."""


class Attention:
    """Computes one attention layer, and writes its keys and values to the cache."""

    def __init__(
        self,
        config: AttentionConfig,
        hidden_size: int,
        loader: Loader,
        norm_eps: float = 0.0,
        names: AttentionNames = USUAL_ATTENTION,
        inputs: int | None = None,
    ) -> None:
        """Take the weights of one layer.

        `norm_eps` is the epsilon of the norms of queries and keys, if there are any. `inputs` is the width of
        the rows that queries, keys and values come from; None = `hidden_size`.
        """
        self.config = config
        inputs = inputs or hidden_size
        self.rope = loader.operators.rope
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.widths = (queries, keys, keys, *([queries] if config.output_gate else []))
        """Numbers of outputs: queries, keys, values and, if there is one, the output's gate."""
        # One product instead of three reads the rows once and launches fewer kernels.
        if config.output_gate:
            self.qkv_proj = _with_gate(config, inputs, loader)
        else:
            projections = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
            self.qkv_proj = loader.join(projections, inputs, bias=config.bias)
        self.norms: list[Norm] = []
        """Norms of parts of queries and of keys before rotation; empty = `head_norm` is used, or none."""
        self.norm_widths = (queries, keys) if config.joint_norm else (config.head_dim, config.head_dim)
        """Widths of the parts that `norms` take: all heads together, or one."""
        self.head_norm = None
        """Norm of all heads of queries and keys at once, as an operator; None = `norms` are used, or none."""
        if config.qk_norm and (config.joint_norm or loader.library is not None):
            self.norms = [
                loader.norm(name, width, norm_eps)
                for name, width in zip((names.query_norm, names.key_norm), self.norm_widths, strict=True)
            ]
        elif config.qk_norm:
            self.head_norm = _head_norm(config, norm_eps, names, loader)
        self.take_kernels(loader)
        self.gate = None if loader.library is None else RowGate(loader.library)
        """C++ kernel that applies the output's gate, if there is one; None = `activate` is used."""
        self.activate = loader.operators.activate
        self.o_proj = loader.linear(names.output, queries, hidden_size, bias=config.bias)

    def take_kernels(self, loader: Loader) -> None:
        """Set the kernels that write and read the pages, by the shape of attention in `config`."""
        self.write = loader.operators.kv_write
        self.kernels = self._kernels(None if loader.batch_invariant else loader.library)
        """C++ kernels that attend for decoding rows and for prompts; None = `attend` is used for all rows."""
        self.attend = self._attend(loader)

    def projecting(self, qkv_proj: Rows, o_proj: Rows) -> "Attention":
        """Return a copy of the layer with other projections to queries | keys | values and to the result."""
        twin = copy(self)
        twin.qkv_proj, twin.o_proj = qkv_proj, o_proj
        return twin

    @property
    def gathers(self) -> bool:
        """Whether plans must list the keys that torch gathers, for lack of a kernel that reads the pages.

        This may change until the engine has started.
        """
        return self.kernels is None and computes_by_reference(self.attend)

    def _attend(self, loader: Loader) -> PagedAttention:
        config, operators = self.config, loader.operators
        if loader.batch_invariant:
            return attention_by_row
        if why := operators.why_not_attend(config.heads, config.kv_heads, config.head_dim, loader.dtype):
            log.warning("torch computes attention, because the Triton kernels cannot: %s", why)
            operators = REFERENCE
        return operators.paged_attention

    def _kernels(self, library: Library | None) -> tuple[PagedDecoder, PagedExtender] | None:
        config = self.config
        if library is None:
            return None
        if config.head_dim > MOST_HEAD_DIM:
            log.warning(
                "torch computes attention: the CPU kernels do not support heads of %d", config.head_dim
            )
            return None
        heads, kv_heads, width, scale = config.heads, config.kv_heads, config.head_dim, config.scale
        return (
            PagedDecoder(library, heads=heads, kv_heads=kv_heads, head_dim=width, scale=scale),
            PagedExtender(library, heads=heads, kv_heads=kv_heads, head_dim=width, scale=scale),
        )

    def __call__(
        self, x: torch.Tensor, kv: Pages, plans: StepPlans, turns: Turns | None = None
    ) -> torch.Tensor:
        """Compute one step of the rows `x`, [T, d]; return [T, d].

        Keys and values are written to `kv`, [pages, 2, page_size, kv_heads, head_dim], and attention reads
        them there, so that with FP8 pages all rows read rounded values. `turns` is the rotation of queries
        and keys; None = attention uses no positions.
        """
        assert plans.attention is not None
        query, key, value, gate = self._project(x, turns)
        self.write(kv, key, value, plans.page, plans.offset)
        attended = query.new_empty(query.shape)
        if self.kernels is None:
            self.attend(query, kv, self.config.scale, plans.attention, attended)
        else:
            decode, extend = self.kernels
            cut = plans.decodes
            if cut:
                decode(query[:cut], kv, plans.attention, attended[:cut])
            if cut < plans.tokens:
                extend(query[cut:], kv, plans.attention, attended[cut:])
        flat = self._flat(attended)
        if gate is not None:
            flat = self._apply_gate(flat, gate.flatten(1))
        return self.o_proj(flat)

    def _flat(self, attended: torch.Tensor) -> torch.Tensor:
        """Return the input of the last projection, [T, any], from the results of all heads, [T, H, h]."""
        return attended.flatten(1)

    def remember(
        self,
        x: torch.Tensor,
        kv: Pages,
        page: torch.Tensor,
        offset: torch.Tensor,
        turns: Turns | None,
        *,
        empty: torch.Tensor,
    ) -> None:
        """Write keys and values of rows x [T, d] at page and offset [T], without attending.

        `empty` are the rows whose key and value are zeros.
        """
        _, key, value, _ = self._project(x, turns)
        if len(empty):
            key[empty] = 0
            value[empty] = 0
        self.write(kv, key, value, page, offset)

    def _project(
        self, x: torch.Tensor, turns: Turns | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return queries, keys and values by head, normed and rotated, and the gate of the output, if any."""
        width = self.config.head_dim
        projected = self.qkv_proj(x)
        parts = projected.split(self.widths, 1)
        query, key, value, *gate = (part.unflatten(1, (-1, width)) for part in parts)
        both = projected[:, : sum(self.widths[:2])]
        if self.head_norm is not None:
            both = self.head_norm(both)
            query, key = (part.unflatten(1, (-1, width)) for part in both.split(self.widths[:2], 1))
        if self.norms:
            query, key = (
                norm(part.reshape(-1, norm_width), None).view(part.shape)
                for norm, part, norm_width in zip(self.norms, (query, key), self.norm_widths, strict=True)
            )
            if turns is not None:
                self.rope(query, *turns)
                self.rope(key, *turns)
        elif turns is not None:
            # Queries and keys are adjacent, so one call rotates both.
            self.rope(both.unflatten(1, (-1, width)), *turns)
        return query, key, value, gate[0] if gate else None

    def _apply_gate(self, flat: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return flat * sigmoid(gate); either may be overwritten."""
        if self.gate is not None:
            self.gate(flat, gate)
            return flat
        self.activate(gate, Function.SIGMOID, flat)
        return gate


def _head_norm(config: AttentionConfig, eps: float, names: AttentionNames, loader: Loader) -> Rows:
    """Return the norm of the heads of rows of queries | keys."""
    norms = ((names.query_norm, config.heads), (names.key_norm, config.kv_heads))
    weight = torch.cat([loader.norm_weight(name, config.head_dim).repeat(heads) for name, heads in norms])
    norm, groups, dtype = loader.operators.rms_norm, config.heads + config.kv_heads, loader.dtype
    return lambda x: norm(x, weight, eps, None, dtype, groups)


def _with_gate(config: AttentionConfig, hidden_size: int, loader: Loader) -> Rows:
    """Return the projection to queries | keys | values | gates.

    In the checkpoint, each head's gate follows its query.
    """
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    query, gate = torch.arange(2 * queries).view(config.heads, 2, -1).unbind(1)
    both = loader.matrix("q_proj.weight", 2 * queries, hidden_size)
    key, value = (loader.matrix(f"{name}.weight", keys, hidden_size) for name in ("k_proj", "v_proj"))
    parts = [rows_of(both, query.flatten()), key, value, rows_of(both, gate.flatten())]
    if isinstance(both, torch.Tensor):
        give_back(both)
    bias = None
    if config.bias:
        of_both = loader.tensor("q_proj.bias", 2 * queries)
        others = [loader.tensor(f"{name}.bias", keys) for name in ("k_proj", "v_proj")]
        bias = torch.cat([of_both[query.flatten()], *others, of_both[gate.flatten()]])
    projections = [
        loader.part("q_proj", 0, 2 * queries, query.flatten()),
        loader.part("k_proj", queries, keys),
        loader.part("v_proj", queries + keys, keys),
        loader.part("q_proj", queries + 2 * keys, 2 * queries, gate.flatten()),
    ]
    return loader.product_of(parts, bias, parts=projections)
