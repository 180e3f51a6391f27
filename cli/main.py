"""The one command. Importing this module imports typer and nothing heavier: ``--help`` answers at once.

Exit status: 0; 1 for an internal error or failed cells; 2 for bad input, with one line on stderr; 130 for Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from cli import catalogue, demo, plot, policies, simulate, sweep, traces

INTERRUPTED = 130

app = typer.Typer(
    name="bulletsim",
    help="Simulate, measure and compare LLM-serving policies that share one GPU between prefill and decode.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
app.command("demo")(demo.demo)
app.add_typer(traces.app, name="traces")
app.command("simulate")(simulate.simulate)
app.command("sweep")(sweep.sweep)
app.command("plot")(plot.plot)
app.command("policies")(policies.policies)
app.command("models")(catalogue.models)
app.command("devices")(catalogue.devices)


def run(arguments: Sequence[str]) -> int:
    """The command's exit status; prints what went wrong. Internal errors are raised."""
    try:
        status = app(args=list(arguments), prog_name="bulletsim", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
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
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


def _refuse_usage(message: str, context: typer.Context | None) -> int:
    if message.startswith("Usage:"):
        # A group of commands named without one of them.
        print(message, file=sys.stderr)
        return 2
    return _refuse(f"{message.rstrip('.')}; see {context.command_path if context else 'bulletsim'} --help")


def _refuse(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2
