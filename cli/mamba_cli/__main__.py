"""`python -m mamba_cli`, the same as `mambaserve`."""

from mamba_cli.main import run

run()
