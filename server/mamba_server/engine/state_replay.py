"""Choice of an engine's ring: after how many tokens decoded states are written, and from how many rows on.

`auto` follows a table of what was measured, by device. A device that is not in it writes all states in each
step: there is no guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mamba_planner.model_config import ModelConfig
from mamba_server.cache import PersistentBatch
from mamba_server.engine.scheduling.ring_rows import RingRows
from mamba_server.model.device_arena import ring_memory
from mamba_settings.engine_settings import EngineSettings


@dataclass(frozen=True, slots=True)
class ReplayRule:
    """Rule for rings: states are written once in `tokens` tokens.

    It holds for steps of at least `least_rows` decodes; smaller steps write all states.
    """

    tokens: int
    least_rows: int = 1


MEASURED: Mapping[str, ReplayRule] = {}
"""Rules by which whole steps were measured to be faster, by the device's name; "cpu" for all CPUs. It is
empty: no GPU was measured, and on a CPU no length of ring was reliably faster."""


def replay_rule(settings: EngineSettings, config: ModelConfig, device: torch.device) -> ReplayRule | None:
    """Return the rule of the settings, or else the rule measured for the device.

    None means that each step writes all states.
    """
    if settings.ring_tokens:
        return ReplayRule(settings.ring_tokens)
    recurrent = config.mamba is not None or config.gated_delta is not None
    contradicted = settings.speculation != "off" or settings.batch_invariant
    if settings.state_replay == "off" or contradicted or not recurrent:
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    rule = MEASURED.get(name)
    return None if rule is None or settings.page_size % rule.tokens else rule


def with_rule(settings: EngineSettings, rule: ReplayRule | None) -> EngineSettings:
    """Return the settings with the rule's number of tokens, from which the plan computes the ring's size."""
    return settings if rule is None else settings.model_copy(update={"state_replay": str(rule.tokens)})


def rings_of(
    rule: ReplayRule | None, config: ModelConfig, lanes: int, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Allocate the rings of all recurrent layers, with `lanes` lanes each; none without a rule.

    A ring keeps the inputs of the last tokens of each row between two writes of its state.
    """
    if rule is None:
        return []
    return ring_memory(config, lanes=lanes, tokens=rule.tokens, dtype=dtype, device=device)


def ring_rows(rule: ReplayRule | None, batch: PersistentBatch) -> RingRows | None:
    """Return the rows that decode with a ring; None without a rule."""
    return None if rule is None else RingRows(batch, rule.tokens, rule.least_rows)
