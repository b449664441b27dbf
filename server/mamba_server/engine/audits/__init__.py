"""Audits: a share of the answers that resumed from a checkpoint is computed once more without the cache."""
