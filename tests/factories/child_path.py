"""Where a process that a test starts finds the code under test and these factories."""

import os
from pathlib import Path

import collm

PYTHONPATH = os.pathsep.join((str(Path(collm.__file__).parents[1]), str(Path(__file__).parents[1])))
"""For its environment: the code that the test itself runs, wherever it is installed from."""
