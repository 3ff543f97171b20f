"""What `palimpsest doctor` finds: findings as values, the judgements that make them, and a rehearsed session."""
