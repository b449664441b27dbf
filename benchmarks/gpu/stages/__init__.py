"""The stages: each module has `cases(job)` and `facts(job)`."""
