"""Erasing the content of sessions from the log, and from what the file system has of it."""
