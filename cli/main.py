"""The one command. Importing this module imports typer and nothing heavier: ``--help`` answers at once.

Exit status: 0; 1 for an internal error or failed cells; 2 for bad input, with one line on stderr; 130 for Ctrl-C, 143
for SIGTERM.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import TextIO

import typer

from cli import completion
from cli.entry import INTERRUPTED

TERMINATED = 143
SCARCE = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
"""What memory, processes and pipes fail by, which have no file."""

NEW_OBJECTS = 50_000
"""After which Python looks for cycles."""

COMMANDS = {
    "demo": ("cli.demo", "demo"),
    "traces": ("cli.traces", "app"),
    "simulate": ("cli.simulate", "simulate"),
    "sweep": ("cli.sweep", "sweep"),
    "capacity": ("cli.capacity", "capacity"),
    "tune": ("cli.tune", "tune"),
    "plot": ("cli.plot", "plot"),
    "report": ("cli.report", "report"),
    "profile": ("cli.profile", "profile"),
    "profiles": ("cli.profiles", "app"),
    "fit": ("cli.fit", "fit"),
    "validate": ("cli.validate", "validate"),
    "policies": ("cli.policies", "policies"),
    "models": ("cli.catalogue", "models"),
    "devices": ("cli.catalogue", "devices"),
}
"""Each command's module, and what in it."""


def app(named: str = "") -> typer.Typer:
    """The command with all its parts, or with the one that is ``named``: typer reads the options of all it has."""
    whole = typer.Typer(
        name="bulletsim",
        help="Simulate, measure and compare LLM-serving policies that share one GPU between prefill and decode.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        # Without one, typer would make the one command the whole.
        callback=lambda: None,
    )
    for name in (named,) if named in COMMANDS else COMMANDS:
        module, attribute = COMMANDS[name]
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            whole.add_typer(found, name=name)
        else:
            whole.command(name)(found)
    return whole


class Terminated(BaseException):
    """SIGTERM came: as Ctrl-C, it ends what was started and keeps what is done."""


def run(arguments: Sequence[str]) -> int:
    """The command's exit status; prints what went wrong. Internal errors are raised."""
    try:
        command = app(next(iter(arguments), ""))
        status = command(args=list(arguments), prog_name="bulletsim", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except Terminated:
        print("terminated", file=sys.stderr)
        return TERMINATED
    except MemoryError as error:
        return _refuse(
            f"memory is short{f' ({error})' if str(error) else ''}; serve fewer requests, or use fewer --jobs"
        )
    except OSError as error:
        if not _flushed() or isinstance(error, BrokenPipeError):
            return 2
        if error.filename is None and error.errno in SCARCE:
            return _refuse(
                f"{error.strerror}: a limit of this process or machine; raise it (ulimit -a), or ask for less"
            )
        # Files that are written are named; what has no name is a stream.
        return _refuse(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except ValueError as error:
        return _refuse(str(error))
    except Exception as error:
        # Usage errors; their class is not one that typer exports.
        if not hasattr(error, "format_message"):
            raise
        return _refuse_usage(error.format_message(), getattr(error, "ctx", None))
    if status == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0


def main() -> None:
    """What the entry point runs."""
    _open_streams()
    signal.signal(signal.SIGTERM, _terminate)
    # Nothing here uses a plugin of pydantic, and to find that there is none it reads what every package installed says.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Modules and tables stay: looking among them for cycles every 700 objects, Python's default, is lost on a start.
    gc.set_threshold(NEW_OBJECTS)
    if os.environ.get(completion.VARIABLE) == completion.BASH:
        completion.in_bash(lambda: run([]))
        return
    status = run(sys.argv[1:])
    sys.exit(status if _flushed() else status or 2)


def _flushed() -> bool:
    """Whether what was printed has left; says so where it has not, and lets it go."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # The interpreter would flush again as it ends, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # `| head` has read what it wanted
            _refuse(f"standard output: {error.strerror}")
        return False
    return True


def _open_streams() -> None:
    """Streams that can be written to: closed ones lead nowhere, and a character they lack becomes another."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor is this one. Left free, the next file opened would be a standard stream.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as the process lives


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _refuse_usage(message: str, context: typer.Context | None) -> int:
    if message.startswith("Usage:"):
        # A group of commands named without one of them.
        print(message, file=sys.stderr)
        return 2
    return _refuse(f"{message.rstrip('.')}; see {context.command_path if context else 'bulletsim'} --help")


def _refuse(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2
