"""The traffic that engines measure, and the change of the strategy for it.

`measured_workload` reads the counters of engines and computes the mean traffic over a window.
`workload_status` builds the part of the status. `change` decides when another strategy is announced and
applied. None of these has a clock or does I/O. `watch` polls the engines.
"""
