"""One request from the client to an engine and its answer back."""
