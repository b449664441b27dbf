"""What one pass decides: the reconcile plan and what it knows of the prefix index."""
