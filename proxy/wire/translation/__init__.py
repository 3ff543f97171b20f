"""Conversations of one wire format as those of another."""
