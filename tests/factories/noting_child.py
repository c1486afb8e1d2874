"""Children of a cluster as they really are; a front writes its pid where COLLM_TEST_FRONT_PID says.

Run by ``factories.fake_cluster``.
"""

import os
import sys
from pathlib import Path

from collm.cli.main import main

if __name__ == "__main__":
    if sys.argv[1] == "front":
        Path(os.environ["COLLM_TEST_FRONT_PID"]).write_text(str(os.getpid()))
    main()
