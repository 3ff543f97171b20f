"""What `palimpsest doctor` finds: findings as values, and the judgements that make them."""
