"""The prefix index: which engine can resume which prefix, from the engines' trees to the gateways' copies."""
