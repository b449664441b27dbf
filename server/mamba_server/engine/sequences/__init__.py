"""Sequences and the schedule of one step, which every other folder of the engine uses."""
