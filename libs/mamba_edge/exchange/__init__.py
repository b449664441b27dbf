"""One request and its answer at the edge: bodies, budgets, identifiers, error answers."""
