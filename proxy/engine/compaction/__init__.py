"""Asking models for summaries in the background: recorded, bounded, and only if permitted."""
