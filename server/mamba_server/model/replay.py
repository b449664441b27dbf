"""Decodes of recurrent layers with drafts behind them: what is absorbed, decoded, and only tried.

A step first absorbs the accepted drafts of earlier steps from the ring into the live slots, then decodes one
token of each sequence there, then tries its drafts, one after another, on a copy of the layer's state, and
keeps their raw inputs in the ring. All three are calls of the layer's decode kernel, in the order of the
tokens, so that every state and every result has the bits of a plain decode. Mixers call `decode_rows`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.slot_plan import IntArray, SlotPlan, index_tensor

DecodeCall = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, SlotPlan, torch.Tensor], object]
"""Decode of one layer: (projected rows, windows, states, plan, results)."""


@dataclass(frozen=True, slots=True)
class HostReplay:
    """Says which sequences of a step have drafts, and which accepted drafts their states lack; numpy int32.

    There are n sequences with drafts, and a sequences whose accepted drafts of earlier steps are computed
    into their states.
    """

    absorbed_slot: IntArray
    """Live slot of each sequence whose accepted drafts are computed into its state, [a]."""
    absorbed_lane: IntArray
    """Lane of the ring that holds their inputs, [a]."""
    absorbed_count: IntArray
    """Number of inputs to compute, the first ones of the lane, [a]."""
    absorbed_noise: IntArray
    """[a, most] `noise_words` by which the state after each of them is rounded; zeros unless it is float16"""
    draft_slot: IntArray
    """Live slot of each sequence with drafts, [n]."""
    draft_lane: IntArray
    """Lane of the ring that keeps the inputs of its drafts, [n]."""
    draft_len: IntArray
    """Number of its drafts, in descending order, [n]."""

    @property
    def rows(self) -> int:
        """Number of drafts of the step.

        Their rows follow the rows of the decodes: all first drafts, then all second ones, and so on.
        """
        return int(self.draft_len.sum())


@dataclass(frozen=True, slots=True)
class ReplayMemory:
    """Memory in which drafts are computed: a ring for each recurrent layer, and a copy of one layer's states.

    `most`: inputs of a lane. Row lane * most + i of a ring is input i of the lane.
    """

    ring: list[torch.Tensor]
    """[lanes * most, width] per recurrent layer: rows of the input projection."""
    conv: torch.Tensor
    """[lanes + 1, K-1, C]: windows that drafts move on; the first belongs to nobody."""
    ssm: torch.Tensor
    """[lanes + 1, H, P, N]: states that drafts move on."""
    most: int


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Says which drafts a step computes on copies of states, and which accepted ones it absorbs before.

    To absorb is to compute the inputs of accepted drafts, which a lane of the ring holds, into the live slot.
    The plan is the same for all recurrent layers.
    """

    memory: ReplayMemory
    absorbed: list[tuple[torch.Tensor, SlotPlan]]
    """Rows of the ring with accepted drafts, and the plan of the live slots that get them, one input of each
    sequence at a time."""
    copied: list[int]
    """Live slot of each sequence with drafts, whose copy has the number of its place plus one."""
    drafts: list[tuple[slice, torch.Tensor, SlotPlan]]
    """Rows of the step, rows of the ring, and copies, one draft of each sequence at a time."""

    @classmethod
    def build(
        cls, host: HostReplay, memory: ReplayMemory, first: int, noise: IntArray, device: torch.device
    ) -> "ReplayPlan":
        """Plan a step.

        `first` is the row of the first draft. `noise` has the words of all rows by which float16 states are
        rounded, or is empty.
        """
        absorbed, drafts = [], []
        for turn in range(int(host.absorbed_count.max(initial=0))):
            rows = np.flatnonzero(host.absorbed_count > turn)
            slots, none = host.absorbed_slot[rows], np.full(len(rows), -1, np.int32)
            plan = SlotPlan.build(slots, slots, none, device, host.absorbed_noise[rows, turn])
            absorbed.append((index_tensor(host.absorbed_lane[rows] * memory.most + turn, device), plan))
        for turn in range(int(host.draft_len.max(initial=0))):
            count = int((host.draft_len > turn).sum())
            copies, none = np.arange(1, count + 1, dtype=np.int32), np.full(count, -1, np.int32)
            words = noise[first : first + count] if len(noise) else None
            plan = SlotPlan.build(copies, copies, none, device, words)
            places = index_tensor(host.draft_lane[:count] * memory.most + turn, device)
            drafts.append((slice(first, first + count), places, plan))
            first += count
        return cls(memory, absorbed, host.draft_slot.tolist(), drafts)

    def absorb(
        self, decode: DecodeCall, conv: torch.Tensor, ssm: torch.Tensor, ring: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Compute the inputs of accepted drafts into the live slots of a layer, in order.

        `out` has the shape of the results of the layer's decode.
        """
        for places, plan in self.absorbed:
            decode(ring[places], conv, ssm, plan, out.new_empty(len(places), *out.shape[1:]))

    def try_drafts(
        self,
        decode: DecodeCall,
        projected: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        ring: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Compute the drafts on copies of the live slots, after their decodes, and keep their inputs."""
        memory = self.memory
        for copy, slot in enumerate(self.copied, 1):
            memory.conv[copy].copy_(conv[slot])
            memory.ssm[copy].copy_(ssm[slot])
        for rows, places, plan in self.drafts:
            decode(projected[rows], memory.conv, memory.ssm, plan, out[rows])
            ring[places] = projected[rows]


def decode_rows(
    decode: DecodeCall,
    projected: torch.Tensor,
    conv: torch.Tensor,
    ssm: torch.Tensor,
    plan: SlotPlan,
    out: torch.Tensor,
    replay: ReplayPlan | None,
    ring: torch.Tensor | None,
) -> None:
    """Decode all rows of a step in one recurrent layer, including the rows of drafts.

    Args:
        decode: the layer's decode.
        projected: projected inputs, first of the sequences' own tokens, then of the drafts.
        conv: convolution windows of all slots of the layer, written.
        ssm: states of all slots of the layer, written.
        plan: slots of the rows that are not drafts.
        out: results, in the order of `projected`, written.
        replay: drafts of the step; None if the step has none.
        ring: the layer's ring, which keeps the inputs of drafts; None if the engine has no drafts.
    """
    if replay is None or ring is None:
        decode(projected, conv, ssm, plan, out)
        return
    replay.absorb(decode, conv, ssm, ring, out)
    cut = plan.host.shape[1]
    decode(projected[:cut], conv, ssm, plan, out[:cut])
    replay.try_drafts(decode, projected, conv, ssm, ring, out)
