"""Conversations as files: the calls that save and load them, and the list of a folder."""
