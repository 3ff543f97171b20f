"""What transcripts of sessions would have cost if they had been managed: the engine replays them, offline."""
