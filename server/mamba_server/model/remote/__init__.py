"""Models in buckets, registries and on web servers: how files are listed, fetched, compared, kept."""
