"""The store of bundles: checkpoints with their attention pages, in host memory and on disk."""
