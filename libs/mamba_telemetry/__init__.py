"""Logs, traces and metrics set-up for all processes."""
