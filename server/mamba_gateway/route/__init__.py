"""Routing: which endpoint gets a request. Filters drop, scorers rate (0 to 1), a picker chooses."""
