"""Images of the containers: what is in them, their bills of materials, and the command that builds them."""
