"""Data sets of transitions: runs, Minari, D4RL and npz files, opened as memory-mapped columns."""

from rekindle.data.dataset import Dataset, Episode
from rekindle.data.export import export_minari, export_npz
from rekindle.data.sampling import Batches
from rekindle.data.statistics import Statistics

__all__ = ["Batches", "Dataset", "Episode", "Statistics", "export_minari", "export_npz"]
