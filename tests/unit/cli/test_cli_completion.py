"""Shells are told what can come next, without torch being loaded for it."""

import os
import re
import subprocess
import sys

import pytest

WORDS = {
    ("collm ", 1): {"serve", "adapters", "doctor"},
    ("collm adapters ", 2): {"list", "history", "rollback"},
    ("collm serve --", 2): {"--config", "--replicas"},
    ("collm jobs create --n", 3): {"--name"},
}


def complete(typed: str, number: int, shell: str = "bash") -> set[str]:
    """Return what ``shell`` would offer after what was typed."""
    code = "import sys; sys.argv[0] = 'collm'; from collm.cli.main import main; main()"
    environment = {
        **os.environ,
        "_COLLM_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(number),
        "_TYPER_COMPLETE_ARGS": typed,
    }
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert re.search(r"\| +torch$", done.stderr, re.MULTILINE) is None
    return set(done.stdout.split())


@pytest.mark.parametrize(("typed", "expected"), WORDS.items())
def test_bash_completes_commands_and_options(typed, expected):
    assert expected <= complete(*typed)
