"""Who may ask how much: permits and the queue for them, rates and budgets of keys, what was used."""
