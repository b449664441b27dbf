"""One HybridModel for all families: config adapters, weights, layers."""
