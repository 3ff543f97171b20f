"""Pure: readers of the transcripts that clients keep of their sessions, one module for each client."""
