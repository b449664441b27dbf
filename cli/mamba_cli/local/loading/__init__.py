"""Progress of downloads and loading models, for users and for metrics."""
