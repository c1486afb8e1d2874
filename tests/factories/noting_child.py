"""Children of a cluster as they really are; a front writes its pid where COLLM_TEST_FRONT_PID says.

Run by ``factories.fake_cluster``.
"""

import os
import sys
from pathlib import Path

from collm.cli.main import main


def note_front_pid() -> None:
    """Write the pid in one go: a reader finds the one before or this one, whole."""
    path = Path(os.environ["COLLM_TEST_FRONT_PID"])
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    if sys.argv[1] == "front":
        note_front_pid()
    main()
