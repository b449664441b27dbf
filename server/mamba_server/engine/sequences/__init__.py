"""Sequences and the schedule of one step: what every other folder of the engine speaks of."""
