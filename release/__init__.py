"""What a release publishes: packages, chart, manifests, bill of materials, notes and checksums."""
