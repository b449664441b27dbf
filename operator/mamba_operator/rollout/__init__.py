"""How engines get from one revision to the next: side by side, in place, or back. Pure but for `watch`."""
