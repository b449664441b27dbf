"""The recipe: what is trained on how many tokens, stage by stage. Read by `train`; the README explains it."""

from dataclasses import dataclass

from training.tiny_recall.conversation import Mix


@dataclass(frozen=True, slots=True)
class Stage:
    length: int
    """Tokens per row."""
    rows: int
    """Rows per step."""
    steps: int
    mix: Mix
    others: float = 0.0
    """Share of steps that repeat an earlier stage's length, so that short conversations are not unlearnt."""


STAGES = (
    Stage(64, 32, 600, Mix(bare=0.55, idle=0.15, skill=0.05)),
    Stage(128, 24, 700, Mix(bare=0.3, idle=0.3, skill=0.1), others=0.1),
    Stage(256, 16, 800, Mix(bare=0.2, idle=0.35, skill=0.15), others=0.2),
    Stage(512, 8, 400, Mix(bare=0.2, idle=0.25, skill=0.15), others=0.3),
    Stage(1024, 4, 400, Mix(bare=0.2, idle=0.15, skill=0.15), others=0.4),
)
SEED = 7
PEAK_RATE = 5e-3
FINAL_SHARE = 0.02
"""The rate ends at this share of its peak (cosine)."""
WARM_UP = 100
WEIGHT_DECAY = 0.02
ELSEWHERE = 0.03
"""Weight of the loss on tokens that are not part of an answer."""
