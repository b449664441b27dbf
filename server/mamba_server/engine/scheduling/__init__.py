"""Choice of the sequences that run in the next step, and of their numbers of tokens."""
