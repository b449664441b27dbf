"""Routers and autoscalers compared over the simulated fleet of `mamba_cli.fleet`; profiles fitted to runs.

`routers` and `scalers` are compared, `experiment` is one cell of the table, `score` counts.
"""
