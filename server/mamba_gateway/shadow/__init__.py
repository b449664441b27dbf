"""Shadow traffic: copies of requests to the candidate of a canary, whose answers are compared and dropped."""
