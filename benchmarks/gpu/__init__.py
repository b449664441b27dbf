"""Measures kernels, steps and an engine on a GPU in one go: `python -m benchmarks.gpu --out DIR`.

The process that is started imports no torch. It runs each stage in a child process, gives every case a time
limit, and writes each case's line before the next case begins, so that whatever breaks costs itself alone.
"""
