"""Use of the engine by requests: totals by day, API key and adapter, and the feed of them for gateways."""
