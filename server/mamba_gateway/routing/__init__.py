"""Choice of an engine for a request: the cost at each engine, the decision, and the reasons for it."""
