"""Timing decides no test: a machine may be busy."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")
