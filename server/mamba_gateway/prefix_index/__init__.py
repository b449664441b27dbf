"""Where the gateway hears of the prefixes that engines can resume: Redis, or the engines themselves."""
