"""The pooling that a model's files state, in the form of Sentence Transformers."""

import json
from pathlib import Path
from typing import Literal

from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


def model_pooling(directory: Path) -> Literal["mean", "last"]:
    """Return the pooling of `1_Pooling/config.json`; `last` where there is no such file."""
    path = directory / "1_Pooling" / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        return "last"
    except (OSError, ValueError) as error:
        log.warning("pooling_unreadable", file=str(path), reason=str(error))
        return "last"
    mode = config.get("pooling_mode") if isinstance(config, dict) else None
    if isinstance(config, dict):
        if config.get("pooling_mode_mean_tokens") or mode == "mean":
            return "mean"
        if config.get("pooling_mode_lasttoken") or mode == "lasttoken":
            return "last"
    log.warning("pooling_unknown", file=str(path), reason="it is neither mean nor last, so last is used")
    return "last"
