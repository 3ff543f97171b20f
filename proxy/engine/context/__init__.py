"""Context management: the messages that are sent upstream in place of the beginning of a long history."""
