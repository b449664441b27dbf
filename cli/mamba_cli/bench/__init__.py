"""The load generator of `mambaserve bench`: schedules, prompts, client and report."""
