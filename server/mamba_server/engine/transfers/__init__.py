"""Transfer of states between this engine and others, and between the arena and the tiers below it."""
