"""Cases of attention over pages, rotary positions, and writes of keys and values."""

import numpy as np
import torch

from mamba_kernels.bench.case import Case, Inputs
from mamba_kernels.bench.model_shape import ModelShape
from mamba_kernels.dispatch.operators import Operators
from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.rope import frequencies, turns

PAGE = 16


def attention_cases(name: str, shape: ModelShape, device: torch.device, *, small: bool) -> list[Case]:
    """Return the cases at the shapes of a model; `small` ones are for a machine without a GPU."""
    decodes = ((8, 512),) if small else ((1, 8192), (64, 1024), (64, 8192), (1, 131_072))
    pieces = ((128, 512),) if small else ((2048, 2048), (2048, 16_384))
    cases = [_attend(name, shape, device, rows, 1, context) for rows, context in decodes]
    cases += [_attend(name, shape, device, 1, tokens, context) for tokens, context in pieces]
    cases += [_rope(name, shape, device, rows) for rows in ((256,) if small else (64, 4096))]
    return [*cases, _write(name, shape, device, 256 if small else 4096)]


def _attend(
    name: str, shape: ModelShape, device: torch.device, sequences: int, new: int, context: int
) -> Case:
    """Return the case of `sequences` contexts of `context` tokens, of which the last `new` are queries."""

    def inputs(size: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(0)
        pages = -(-context // PAGE)
        kv = torch.randn(
            1 + size * pages, 2, PAGE, shape.kv_heads, shape.head_dim, generator=generator, device=device
        )
        query = torch.randn(size * new, shape.heads, shape.head_dim, generator=generator, device=device)
        scattered = torch.randperm(size * pages, generator=generator, device=device) + 1
        plan = AttentionPlan.build(
            decodes=size if new == 1 else 0,
            query_start=np.arange(0, size * new + 1, new, dtype=np.int32),
            context_len=np.full(size, context, np.int32),
            page_table=scattered.to(torch.int32).view(size, pages),
            page_size=PAGE,
            device=device,
        )
        query = query.bfloat16()
        return {"kv": kv.bfloat16(), "query": query, "plan": plan, "out": torch.empty_like(query)}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        scale = shape.head_dim**-0.5
        operators.paged_attention(
            arguments["query"], arguments["kv"], scale, arguments["plan"], arguments["out"]
        )
        return (arguments["out"],)

    # All new tokens see the keys before them, and on average half of the new keys.
    seen = new * (context - new) + new * (new + 1) // 2
    what = f"{sequences} decodes at" if new == 1 else f"{new} new tokens of"
    return Case(
        "paged_attention",
        f"{name}, {what} {context}",
        sequences,
        1,
        inputs,
        run,
        sequences * (2 * context * shape.kv_heads + 2 * new * shape.heads) * shape.head_dim * 2,
        sequences * 4 * seen * shape.heads * shape.head_dim,
    )


def _rope(name: str, shape: ModelShape, device: torch.device, rows: int) -> Case:
    """Return the case of queries, keys and values side by side; all of each query and key is rotated."""
    turned = shape.heads + shape.kv_heads

    def inputs(size: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(0)
        wide = turned + shape.kv_heads
        joined = torch.randn(size, wide, shape.head_dim, generator=generator, device=device).bfloat16()
        positions = torch.arange(size, dtype=torch.int32, device=device)
        cos, sin = turns(positions, frequencies(10_000.0, shape.head_dim, device))
        return {"x": joined[:, :turned], "cos": cos, "sin": sin}

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        operators.rope(arguments["x"], arguments["cos"], arguments["sin"])
        return (arguments["x"],)

    # Cosines and sines do not count: a step computes them once and all its layers read them.
    least = 2 * rows * turned * shape.head_dim * 2
    return Case("rope", f"{name}, {rows} rows", rows, min(rows, 64), inputs, run, least)


def _write(name: str, shape: ModelShape, device: torch.device, tokens: int) -> Case:
    def inputs(size: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(0)
        parts = torch.randn(size, 2, shape.kv_heads, shape.head_dim, generator=generator, device=device)
        rows = torch.randperm(size, generator=generator, device=device) + PAGE
        kv = torch.zeros(2 + size // PAGE, 2, PAGE, shape.kv_heads, shape.head_dim, device=device)
        parts, kv = parts.bfloat16(), kv.bfloat16()
        return {
            "kv": kv,
            "key": parts[:, 0],
            "value": parts[:, 1],
            "page": rows // PAGE,
            "offset": rows % PAGE,
        }

    def run(operators: Operators, arguments: Inputs) -> tuple[torch.Tensor, ...]:
        operators.kv_write(*(arguments[name] for name in ("kv", "key", "value", "page", "offset")))
        return (arguments["kv"],)

    least = tokens * 2 * shape.kv_heads * shape.head_dim * 2 * 2
    return Case("kv_write", f"{name}, {tokens} tokens", tokens, 64, inputs, run, least)
