"""Limits on what clients may use: permits and the queue for them, rates and token budgets of API keys."""
