"""GPUs on the market: their memory, and the resource profiles that are shipped for them."""
