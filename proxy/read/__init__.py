"""What the command line and the API say of the log. Rule: made here once, so that both say the same."""
