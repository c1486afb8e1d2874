"""Ports that stay a test's own while nobody listens there."""

import socket


def reserved_address() -> socket.socket:
    """Return a socket that never listens, so that no one else is given its port meanwhile.

    A listener of this port may be bound beside it, for both allow the address to be used again.
    Without one, connections are refused.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock
