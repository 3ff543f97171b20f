"""Summaries of spans of a conversation: the prompts for a model, and the checks of what it answers."""
