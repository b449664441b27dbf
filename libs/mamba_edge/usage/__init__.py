"""Use of engines by requests: the form in which engines report it and ledgers add it up."""
