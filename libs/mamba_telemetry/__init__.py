"""Set-up of logs, traces and metrics for all processes."""
