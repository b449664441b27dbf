"""Which engine gets a request: what each would cost, the choice, and why."""
