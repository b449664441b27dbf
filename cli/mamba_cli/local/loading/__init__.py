"""Loading of a model on one machine, as a user watches it."""
