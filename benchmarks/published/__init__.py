"""Every row of the catalogue beside sentence-transformers, on small random folders laid out as the real ones.

Importing this package lets `support` of the tests be imported.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
