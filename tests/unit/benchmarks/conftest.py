"""Lets these tests import the benchmarks' modules that need no torch, as their scripts do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
