"""The benchmark: direct, nginx and palimpsest side by side in one run.  It reports figures and never fails on one."""
