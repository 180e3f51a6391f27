"""``bulletsim`` for the commands of documents, from a process that has imported it: each command is a fork of that one.

A new interpreter spends half a second and more on imports, most of what a short command takes. Only that is left out:
a command has a process, a directory, an environment, streams and an exit status of its own.

``warm_commands`` gives a directory for PATH. What lies there under the command's name is a client that sends its
arguments, directory, environment and streams, and leaves with the status that comes back. A command ends when its
client does, and the warm process when whoever started it does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.main import main

CLIENT = Path(__file__).with_name("warm_client.py")
STREAMS = (0, 1, 2)
LONGEST_REQUEST = 1 << 20
LOADED = ("sim.capacity", "sim.plots.frontier", "sim.report.sources", "sim.simulate", "sim.sweep")
"""Most of what commands import."""


@contextlib.contextmanager
def warm_commands() -> Iterator[Path]:
    """A directory whose ``bulletsim`` is warm, as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        address, client = Path(folder, "address"), Path(folder, "bulletsim")
        client.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-IS", str(CLIENT), str(address)])} "$@"\n')
        client.chmod(0o755)
        command = [sys.executable, "-m", "tests.warm", str(address)]
        root = Path(__file__).parents[1]
        with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            assert process.stdout.readline(), "it listens"
            yield client.parent
            process.stdin.close()


def asked(address: str) -> tuple[bytes, list[int]]:
    """Forks for each command that is asked for, until stdin ends; returns in the fork, with what asks for it."""
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        sys.stdout.write("\n")
        sys.stdout.flush()
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                return attended(connection)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    sys.exit()


def attended(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Forks again, and returns there; here it waits and sends the status, or ends what nobody waits for any more."""
    said, streams, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, len(STREAMS))
    command = os.fork()
    if command == 0:
        connection.close()
        return said, streams
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(command)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(command, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        connection.send(str(status).encode())
    os._exit(0)


def run(said: bytes, streams: Sequence[int]) -> None:
    """The command, as its client would have run it."""
    arguments, directory, environment = json.loads(said)
    for number, stream in zip(STREAMS, streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    # New ones: those that are there have settled what kind of file they write to.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["bulletsim", *arguments]
    main()


if __name__ == "__main__":
    run(*asked(sys.argv[1]))
