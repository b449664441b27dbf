"""States that move: exports to other engines, imports from them, and the tiers below the arena."""
