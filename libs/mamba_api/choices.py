"""Values a user chooses among, listed once for every process: strategies, eviction policies, quantization.

The CRD offers `StrategyChoice`; the planner turns `Auto` into a `Strategy`, which the engine runs.
"""

from typing import Literal, get_args

Strategy = Literal["NoBuffer", "ExtraBuffer", "ExtraBufferLazy"]
"""How a running sequence writes checkpoints."""

StrategyChoice = Literal["Auto", Strategy]
"""A strategy, or Auto for the planner's choice."""

Eviction = Literal["RecomputeCost", "LRU"]
"""Which checkpoint is evicted first: the one expected to save least, or the least recently used."""

Quantization = Literal["none", "int8", "int4", "fp8"]
"""How an engine holds and multiplies the matrices of a model: none = in the type of the weights; int8 = one
byte a weight with a scale for 32 inputs of an output, multiplied by activations quantized in the same way;
int4 = four bits a weight with such a scale. On CPUs embedding and head are int8 then, and activations are
quantized; on GPUs, which have no int8, both keep the type of the weights; fp8 = one byte (e4m3) a weight with
a scale for each output, but embedding and head in the type of the weights, multiplied by activations that are
rounded to FP8 with a scale for each token."""
ON_CPUS: tuple[Quantization, ...] = ("int8",)
"""Quantizations that engines on GPUs refuse."""

KvCacheDtype = Literal["auto", "fp8_e4m3"]
"""Type of the keys and values in pages of attention: auto = that of the activations; fp8_e4m3 = one byte for
each number, and one byte of scale for each head of each token's keys, and of its values."""
FP8_PAGES: KvCacheDtype = "fp8_e4m3"
"""The choice of pages in FP8."""

Speculation = Literal["off", "auto", "ngram", "mtp"]
"""Drafts of tokens that a step checks together: off = none; ngram = by looking up what followed the last
tokens earlier in the text; mtp = by the checkpoint's own head; auto = by whichever of the two is measured to
save the most time in a step, or none; with heads on CPUs only. Engines also take `draft=` and the URI of a
second model, which drafts then."""
DRAFT_MODEL = "draft="
"""Beginning of the choice of a second model's drafts; its URI follows."""

StateReplay = Literal["auto", "off", "2", "4", "8", "16"]
"""Tokens after which a decoded state is written, while the inputs since are replayed in each step: off = each
step writes all states; auto = where that is measured to save time."""

Transport = Literal["Sockets", "Nixl"]
"""How the bytes of states travel between engines: Sockets = over TCP; Nixl = read by an RDMA network card."""

Role = Literal["unified", "prefill", "decode"]
"""Work of an engine: unified = whole requests; prefill = prompts whose states it hands over; decode = answers
to prompts that other engines computed."""
ROLES: tuple[Role, ...] = get_args(Role)
