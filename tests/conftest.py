"""How long hypothesis looks: `HYPOTHESIS_PROFILE=thorough` has it try twenty times as many examples everywhere."""

import os

from hypothesis import settings

settings.register_profile("thorough", max_examples=2000, deadline=None)
if profile := os.environ.get("HYPOTHESIS_PROFILE"):
    settings.load_profile(profile)
