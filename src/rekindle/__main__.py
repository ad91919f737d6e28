"""`python -m rekindle` is the command `rekindle`."""

import sys

from rekindle.cli import main

sys.exit(main())
