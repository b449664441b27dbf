"""The traffic that engines measure, and when the strategy changes for it.

`counts` reads the counters of one engine. `measured_workload` is the mean traffic over a window of them.
`workload_status` is what the status shows. `change` decides when another strategy is announced and taken.
None of these has a clock or does I/O. `watch` asks the engines.
"""
