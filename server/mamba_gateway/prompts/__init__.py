"""A request's prompt as an engine will see it: template and tokens, from the model's own files."""
