"""Guard: only the process that `test_interpreted_kernels.py` starts may run these tests."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreted_language

    interpreted_language.install()
    collect_ignore_glob = []
else:
    collect_ignore_glob = ["*"]
