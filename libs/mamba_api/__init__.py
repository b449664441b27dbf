"""The contracts that every process shares: CRD models, conditions, OpenAI models, names. pydantic only."""
