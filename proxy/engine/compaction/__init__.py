"""Asking models for summaries behind the calls of clients: recorded, bounded, and only where it may be (B27 to B31)."""
