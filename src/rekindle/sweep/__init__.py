"""Studies: search for good settings with many short trainings that resume exactly."""

from __future__ import annotations

from rekindle.sweep.directory import Study
from rekindle.sweep.running import run_study
from rekindle.sweep.settings import StudySettings
from rekindle.sweep.space import Choice, Range, Space, built_in_space, parse_space, read_space, space_text
from rekindle.sweep.trials import Trial

__all__ = [
    "Choice",
    "Range",
    "Space",
    "Study",
    "StudySettings",
    "Trial",
    "built_in_space",
    "parse_space",
    "read_space",
    "run_study",
    "space_text",
]
