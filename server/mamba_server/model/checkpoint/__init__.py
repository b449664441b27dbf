"""Published checkpoints: where they lie, their files, the names and types of their tensors."""
