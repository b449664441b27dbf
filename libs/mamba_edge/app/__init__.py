"""FastAPI applications of the servers: documents, validation, cross-origin rules."""
