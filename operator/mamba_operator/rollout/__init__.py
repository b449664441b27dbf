"""Roll-outs of engines to another revision: side by side, in place, or back. Pure except `watch`."""
