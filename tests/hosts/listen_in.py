"""Writes down what passes an interface: `listen_in.py INTERFACE FILE`, from when FILE is there until it is ended."""

from __future__ import annotations

import socket
import sys

ALL = 3  # ETH_P_ALL
MOST = 1 << 16
FORCE_BUFFER, BUFFER = 33, 64 << 20  # SO_RCVBUFFORCE


def main() -> None:
    """One frame after the other, with a zero byte between two."""
    interface, file = sys.argv[1:]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL)) as listener, open(file, "wb") as out:
        listener.setsockopt(socket.SOL_SOCKET, FORCE_BUFFER, BUFFER)
        listener.bind((interface, ALL))
        out.write(b"\0")
        out.flush()
        while True:
            out.write(listener.recv(MOST) + b"\0")
            out.flush()


if __name__ == "__main__":
    main()
