"""Dialects of coding agents: their requests and answers, and how each request becomes the one chat request.

Engine and gateway translate with the same functions, so that both read the same prompt. A dialect adds no
way of its own to render, limit or generate.
"""
