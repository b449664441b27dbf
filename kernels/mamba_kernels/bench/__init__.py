"""Times of the kernels on this machine, beside its own limits: `python -m mamba_kernels.bench`."""
