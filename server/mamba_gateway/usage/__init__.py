"""The ledger of a gateway: use of engines by day, model, API key and adapter, its prices, and its report."""
