"""Telling people and programs what happens while it happens."""
