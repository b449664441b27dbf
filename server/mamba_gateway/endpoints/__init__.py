"""The gateway's knowledge of its engines: which there are, what they report, how fast they are."""
