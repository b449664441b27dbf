"""The core of the engine: schedules a step, launches it and commits its results."""
