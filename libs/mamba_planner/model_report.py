"""`ModelReport`: facts about a downloaded model for the planner. Pure.

`mambaserve download --report` writes it and the operator reads it. The report is one JSON text, short enough
for a container's termination message, which carries it from the loader to the operator.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mamba_planner.arithmetic import WeightsSize

MAX_BYTES = 4096
"""Maximum bytes of a termination message; the kubelet cuts longer ones."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Facts about a model in a directory."""

    commit: str = ""
    """Commit of the Hub that was downloaded; empty if unknown."""
    config: Mapping[str, Any] | None = field(default=None, hash=False)
    """The model's config.json; None if unknown."""
    weights: WeightsSize | None = None
    """Size of the weights; None if there are none, or if it is unknown."""

    adapters: tuple[str, ...] = ()
    """Commits of the adapters that were downloaded beside the model, in the order of the request."""

    @property
    def commits(self) -> frozenset[str]:
        """Commits of the model and of its adapters."""
        return frozenset((self.commit, *self.adapters))

    def text(self) -> str:
        """Return JSON of at most `MAX_BYTES`; a configuration that does not fit is left out."""
        text = self._text(self.config)
        return text if len(text.encode()) <= MAX_BYTES else self._text(None)

    def _text(self, config: Mapping[str, Any] | None) -> str:
        weights = asdict(self.weights) if self.weights is not None else None
        fields: dict[str, Any] = {"commit": self.commit, "weights": weights, "config": config}
        if self.adapters:
            fields["adapters"] = list(self.adapters)
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def read(cls, text: str) -> "ModelReport":
        """Parse a report; return an empty one if the text is no report."""
        try:
            fields = json.loads(text)
            commit, config, sizes = fields["commit"], fields["config"], fields["weights"]
            weights = None if sizes is None else WeightsSize(**sizes)
            adapters = tuple(map(str, fields.get("adapters", ())))
        except (KeyError, TypeError, ValueError, RecursionError):
            return cls()
        valid = weights is None or all(type(size) is int and size >= 0 for size in asdict(weights).values())
        if isinstance(commit, str) and isinstance(config, dict | None) and valid:
            return cls(commit, config, weights, adapters)
        return cls()
