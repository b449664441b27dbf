"""These tests belong to the process that `test_interpreted_kernels.py` starts."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["*"]
