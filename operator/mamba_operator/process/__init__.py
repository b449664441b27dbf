"""What keeps the operator's process going: settings, leadership, liveness, watches, the work queue."""
