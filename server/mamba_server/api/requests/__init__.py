"""Requests as clients send them: bodies, limits, sampling parameters, prompts, errors."""
