"""Decode steps of a whole model, and drafts of its head, in one call each."""
