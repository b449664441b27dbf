"""The model of all families: checkpoints, layers, and the batches and cache views that they compute on."""
