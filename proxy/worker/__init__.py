"""The worker process: what would hold the interpreter's lock of the serving process for long."""
