"""Steps on the device: inputs, forward pass, captured graphs, sampling, results."""
