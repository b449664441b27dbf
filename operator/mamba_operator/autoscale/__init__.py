"""How many engines traffic needs: a pure decision over what engines and gateways report.

`observation` is what is seen, `config` what is wanted, `memory` what is carried from one decision to the
next, `decide` the decision; `fleet_view` makes observations from reports. No clock and no I/O in any of them.
"""
