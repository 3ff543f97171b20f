"""How long hypothesis looks: `HYPOTHESIS_PROFILE=thorough` has it try twenty times as many examples everywhere.

Rule: no example has a time limit, for what that measures is the machine and who else is busy on it.
"""

import os

from hypothesis import settings

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
settings.register_profile("thorough", max_examples=2000, deadline=None)
if profile := os.environ.get("HYPOTHESIS_PROFILE"):
    settings.load_profile(profile)
