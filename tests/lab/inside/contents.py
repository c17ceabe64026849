"""Every file below a directory, with the digest of all of its bytes, as JSON.

contents FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.e2e.patterns import tree

if __name__ == "__main__":
    json.dump(tree(Path(sys.argv[1])), sys.stdout)
