"""The serving engine: an API process (api, text) and an engine process (engine, cache, model)."""
