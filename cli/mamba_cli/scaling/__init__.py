"""The decisions of the operator's autoscaler, read and made again."""
