"""Relay of one request from the client to an engine, and of the answer back."""
