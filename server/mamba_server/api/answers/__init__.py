"""Answers as clients receive them: chats, completions, scores, streams."""
