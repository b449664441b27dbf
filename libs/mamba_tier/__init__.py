"""Store of bundles below the arena of an engine: checkpoints with their pages, in host memory and on disk."""
