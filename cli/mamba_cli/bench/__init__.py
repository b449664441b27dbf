"""The load generator of `mambaserve bench`: schedules, prompts, the client that measures, the report."""
