"""Shells are told what can come next, without torch being loaded for it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert re.search(r"\| +torch$", done.stderr, re.MULTILINE) is None
    return set(re.findall(r"[\w-]+", done.stdout))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("typed", "expected"), WORDS.items())
def test_a_shell_is_told_commands_and_options(typed, expected, shell):
    assert expected <= complete(*typed, shell=shell)


IN_THE_SHELL = {
    "bash": [
        "bash",
        "--norc",
        "-c",
        "source script; COMP_WORDS=(collm adapters ''); COMP_CWORD=2; _collm_completion collm; "
        'echo "${COMPREPLY[@]}"',
    ],
    "fish": ["fish", "--no-config", "-c", 'source script; complete -C "collm adapters "'],
    # A terminal of its own, in which the tab key is pressed.
    "zsh": [
        "zsh",
        "-f",
        "-c",
        "zmodload zsh/zpty; zpty z zsh -f -i; zpty -w z 'autoload -U compinit; compinit -u -D; "
        "source ./script; LISTMAX=1000; echo is\"\"ready'; zpty -r z said '*isready*'; "
        "zpty -w -n z $'collm adapters \\t'; zpty -r z said '*unpin*'; print -r -- $said",
    ],
}
"""What has a shell complete ``collm adapters``, by the script that it was given."""


@pytest.mark.parametrize("shell", IN_THE_SHELL)
def test_the_script_for_a_shell_works_in_it(shell: str, tmp_path: Path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "collm"
    code = "import sys; sys.argv[0] = 'collm'; from collm.cli.main import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: str, **variables: str) -> str:
        done = subprocess.run(
            command,
            env=environment | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        return done.stdout

    (tmp_path / "script").write_text(run("collm", _COLLM_COMPLETE=f"source_{shell}"))
    assert {"history", "rollback", "unpin"} <= set(re.findall(r"\w+", run(*IN_THE_SHELL[shell])))
