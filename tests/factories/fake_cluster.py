"""A real parent whose children are fakes: ``python -m factories.fake_cluster CHILD ARGUMENTS``.

CHILD is the module that is run as a child, ARGUMENTS are those of ``collm serve``. The first wait
before a process is started again is COLLM_TEST_BACKOFF_S, if that is set.
"""

import os
import sys

from collm.cli import parent_process
from collm.cli.main import main
from collm.cluster import backoff

if __name__ == "__main__":
    backoff._FIRST_S = float(os.environ.get("COLLM_TEST_BACKOFF_S", backoff._FIRST_S))
    parent_process._COLLM = (sys.executable, "-m", sys.argv[1])
    sys.argv[1] = "serve"
    try:
        main()
    finally:
        assert "torch" not in sys.modules
