"""`python -m kvfs`: the same as the `kvfs` command."""

from __future__ import annotations

import sys

from kvfs.cli import main

if __name__ == "__main__":
    sys.exit(main())
