"""Memory arithmetic and the strategy planner: torch-free, used by the engine, the operator and the CLI."""
