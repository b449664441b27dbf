"""These tests belong to the process that `test_interpreted_kernels.py` starts."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreted_language

    interpreted_language.install()
    collect_ignore_glob = []
else:
    collect_ignore_glob = ["*"]
