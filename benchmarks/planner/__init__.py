"""The planner judged by the engine: its choice of a strategy beside what each strategy then serves.

`case` draws models, memory and traffic, `traffic` asks as they say, `step_time` says how long a step takes,
`engine` runs the product's scheduler and cache on them, `comparison` sets the plan beside what was served.
"""
