"""Has a command run by the warm process at an address (tests.warm), on its own streams, and leaves with its status.

Run as ``python -IS warm_client.py ADDRESS ARGUMENTS``; it imports little, since it runs for every command.
"""

import json
import os
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(sys.argv[1])
        asked = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)])  # noqa: PTH109 - pathlib is a third of the time
        socket.send_fds(connection, [asked.encode()], [0, 1, 2])
        sys.exit(int(connection.recv(16) or 1))
