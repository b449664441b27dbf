"""Times of the kernels compared with the limits of this machine: `python -m mamba_kernels.bench`."""
