"""How much each key may use: permits and the queue for them, rates and budgets of keys, token counts."""
