"""The operator's process: settings, leadership, liveness, watches, and the work queue."""
