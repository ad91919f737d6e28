"""Remove the working directory from the module search path when rekindle is started with `python -m`.

The package imports this module before anything else. It imports only what every interpreter has loaded by then, and
has no `from __future__`, which is an import too.
"""

import os
import sys

__all__ = ["drop_working_directory"]


def drop_working_directory() -> None:
    """Remove the entry that `python -m rekindle` put first on `sys.path`.

    The working directory may be a downloaded run, and a `numpy.py` in it would be imported instead of numpy. An entry
    of PYTHONPATH stays, and so does the path of any other program that imports rekindle.
    """
    # Python sets argv[0] to "-m" only while it locates the module to run.
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path or not _is_started():
        return
    if sys.path and os.path.abspath(sys.path[0]) == os.getcwd():
        del sys.path[0]


def _is_started() -> bool:
    """Whether the module that Python runs is one of this package: `-m rekindle`, `-mrekindle.cli`, `-Bm rekindle`."""
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    module = words[-1]
    if module.startswith("-"):
        module = module.partition("m")[2]
    return module.partition(".")[0] == __name__.partition(".")[0]
