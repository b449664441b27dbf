"""Answers of the Responses API that are kept, and the conversations that they form."""
