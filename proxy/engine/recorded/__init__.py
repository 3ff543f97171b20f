"""The recorded sessions: found by a prefix, read back, with their conversations and originals."""
