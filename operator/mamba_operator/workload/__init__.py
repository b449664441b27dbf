"""The traffic that engines measure, and the change of the strategy for it.

`counts` reads the counters of one engine. `measured_workload` computes the mean traffic over a window.
`workload_status` builds the part of the status. `change` decides when another strategy is announced and
applied. None of these has a clock or does I/O. `watch` polls the engines.
"""
