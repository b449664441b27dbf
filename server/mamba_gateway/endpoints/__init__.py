"""What the gateway knows of its engines: which there are, what they report, how quick they are."""
