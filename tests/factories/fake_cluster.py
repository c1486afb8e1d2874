"""A real parent whose children are fakes: ``python -m factories.fake_cluster CHILD ARGUMENTS``.

CHILD is the module that is run as a child, ARGUMENTS are those of ``collm serve``.
"""

import sys

from collm.cli import parent_process
from collm.cli.main import main

if __name__ == "__main__":
    parent_process._COLLM = (sys.executable, "-m", sys.argv[1])
    sys.argv[1] = "serve"
    try:
        main()
    finally:
        assert "torch" not in sys.modules
