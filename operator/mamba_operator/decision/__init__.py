"""The result of one pass: the reconcile plan."""
