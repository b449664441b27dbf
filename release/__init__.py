"""Release: packages, chart, manifests, bill of materials, notes and checksums, built from one commit."""
