"""The command line. Rule: a command reads its options, asks the rooms below, and writes plain text or JSON."""
