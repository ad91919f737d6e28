"""The run: one directory with all files of a training."""

from rekindle.run.directory import TrainingRun
from rekindle.run.finding import find_run, find_runs
from rekindle.run.metadata import Resume, RunMetadata
from rekindle.run.reader import RunReader

__all__ = ["Resume", "RunMetadata", "RunReader", "TrainingRun", "find_run", "find_runs"]
