"""Settings that several processes read: engines, HTTP limits, browser origins, traces."""
