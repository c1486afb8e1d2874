"""``python -m collm``: the ``collm`` command."""

from collm.cli.main import main

main()
