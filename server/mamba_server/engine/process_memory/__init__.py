"""Memory and threads of the engine process on the host."""
