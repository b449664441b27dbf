"""The blocks a hybrid model is made of; each maps normed rows [T, d] to rows [T, d]."""
