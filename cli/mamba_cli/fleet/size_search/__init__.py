"""Sizing of a fleet: the search over fleets and its views."""
