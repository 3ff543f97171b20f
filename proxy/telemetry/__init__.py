"""What a running server tells its operators: log lines, access lines, metrics and traces."""
