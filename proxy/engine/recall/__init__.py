"""Recall: reading again, inside an answer or by other programs, what a model is no longer shown."""
