"""One module per sub-command, imported only when it is called."""
