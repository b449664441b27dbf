"""The result of one pass: the reconcile plan, and the trouble with the prefix index that gateways report."""
