"""The memory plan of a MambaDeployment: computed, pinned, in force, reported by engines."""
