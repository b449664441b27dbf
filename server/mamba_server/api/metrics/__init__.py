"""Metrics and spans of the API process and of the engine behind it."""
