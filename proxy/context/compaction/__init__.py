"""Reports that stand for stretches of a conversation: what is asked of a model, and what of its answer is believed."""
