"""The `mambaserve` command."""
