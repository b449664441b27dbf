"""Which backend computes each operator."""
