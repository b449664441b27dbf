"""The gateway's knowledge of its engines: which ones exist, what they report, and how fast they are."""
