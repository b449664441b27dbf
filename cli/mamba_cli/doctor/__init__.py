"""Checks of a machine and of a cluster before anything is served: `mambaserve doctor`."""
