"""A conversation in the terminal with the model of an endpoint."""
