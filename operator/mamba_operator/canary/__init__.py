"""Canary: a change of the engines that gets more of the traffic step by step. Pure except `watch`."""
