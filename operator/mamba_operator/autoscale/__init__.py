"""The autoscaler: a pure decision on the number of engines, from the reports of engines and gateways.

`observation` is the input, `config` the targets, `memory` the state between two decisions, and `decide` the
decision; `fleet_view` builds observations from reports. None of these has a clock or does I/O.
"""
