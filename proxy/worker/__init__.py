"""The worker process, for work that would hold the serving process's global interpreter lock for long."""
