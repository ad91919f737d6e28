"""Run the command line with `python -m rekindle`."""

import sys

from rekindle.cli import main

sys.exit(main())
