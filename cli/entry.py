"""Where the command starts: Ctrl-C while its modules are read ends it as Ctrl-C later does."""

from __future__ import annotations

import sys
from typing import Final

INTERRUPTED: Final = 130
"""The exit status."""


def main() -> None:
    """The entry point."""
    try:
        from cli.main import main as command

        command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
