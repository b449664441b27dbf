"""Recorded decisions of the operator's autoscaler, read and computed again."""
