"""What an API key may be called: the name stands in metrics and logs, where the key never does."""

import re

KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
