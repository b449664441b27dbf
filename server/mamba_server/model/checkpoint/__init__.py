"""Published checkpoints: their sources, their files, and the names and types of their tensors."""
