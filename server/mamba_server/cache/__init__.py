"""The state cache: arena, pages, slots, radix tree, chunk plan, strategies, ledger. Pure and torch-free."""
