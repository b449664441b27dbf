"""`ModelReport`: what whoever downloaded a model found, for those who plan with it. Pure.

Written by `mambaserve download --report`, read by the operator. One JSON text that fits a container's
termination message, which is how it gets from the one to the other.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mamba_planner.arithmetic import WeightsSize

MAX_BYTES = 4096
"""Of a termination message; the kubelet cuts what is longer."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model that lies in a directory."""

    commit: str = ""
    """Commit of the Hub that was downloaded; empty where that is not known."""
    config: Mapping[str, Any] | None = field(default=None, hash=False)
    """Its config.json; None where that is not known."""
    weights: WeightsSize | None = None
    """Size of its weights; None where there are none, or that is not known."""

    def text(self) -> str:
        """As JSON of at most `MAX_BYTES`; a configuration that does not fit is left out."""
        text = self._text(self.config)
        return text if len(text.encode()) <= MAX_BYTES else self._text(None)

    def _text(self, config: Mapping[str, Any] | None) -> str:
        weights = asdict(self.weights) if self.weights is not None else None
        told = {"commit": self.commit, "weights": weights, "config": config}
        return json.dumps(told, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def read(cls, text: str) -> "ModelReport":
        """What a text tells; of one that is no report, nothing."""
        try:
            told = json.loads(text)
            commit, config, sizes = told["commit"], told["config"], told["weights"]
            weights = None if sizes is None else WeightsSize(**sizes)
        except (KeyError, TypeError, ValueError, RecursionError):
            return cls()
        known = weights is None or all(type(one) is int and one >= 0 for one in asdict(weights).values())
        if isinstance(commit, str) and isinstance(config, dict | None) and known:
            return cls(commit, config, weights)
        return cls()
