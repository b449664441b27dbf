"""The traffic that engines measure, and when the strategy changes for it.

`counts` is what one engine tells, `measured_workload` what a window of that amounts to, `shown` what of it
stands in the status, `change` when another strategy is announced and taken; none of them has a clock or does
I/O. `watch` asks the engines.
"""
