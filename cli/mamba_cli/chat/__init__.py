"""A conversation in the terminal with whatever an endpoint serves."""
