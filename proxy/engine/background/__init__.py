"""Work behind calls, and calls of our own to models."""
