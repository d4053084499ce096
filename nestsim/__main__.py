"""``python -m nestsim`` is the same as ``nestsim``."""

import sys

from nestsim.cli import main

if __name__ == "__main__":
    sys.exit(main())
