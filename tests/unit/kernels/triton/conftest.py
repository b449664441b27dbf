"""Kernels are compiled here for GPUs that are not here; `interpreted/` belongs to another process."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreted_language

    interpreted_language.install()
    collect_ignore = []
else:
    collect_ignore = ["interpreted"]
