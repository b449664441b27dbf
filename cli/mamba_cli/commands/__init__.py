"""Sub-commands of `mambaserve`, one per module; slow packages are imported inside functions."""
