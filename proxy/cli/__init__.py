"""The command line: each command reads its options, calls the layers below, and writes plain text or JSON."""
