"""The gateway: an OpenAI-compatible relay that filters, scores and picks an engine for each request."""
