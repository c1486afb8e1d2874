"""A stand-in for `collm front` and `collm replica`; a front answers connections with its pid.

``python -m factories.fake_child replica|front OPTIONS`` notes what happens to it in the file
that COLLM_TEST_NOTES names: a line ``WHAT NAME PID`` each.
"""

import argparse
import os
import signal
import socket
import sys
import threading
import time

from collm.cli.parent_watch import end_with_stdin

GRACE_S = 20.0


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["replica", "front"])
    parser.add_argument("--name", default="front")
    parser.add_argument("--config", required=True)
    parser.add_argument("--control-secret-file", required=True)
    parser.add_argument("--endpoints")
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--end-with-stdin", action="store_true", required=True)
    return parser.parse_args()


def note(what, name):
    line = f"{what} {name} {os.getpid()}\n"
    descriptor = os.open(os.environ["COLLM_TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def answer(descriptor):
    listener = socket.socket(fileno=descriptor)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(str(os.getpid()).encode())


def main():
    options = parsed()
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    end_with_stdin(GRACE_S)
    if options.listen_fd is not None:
        threading.Thread(target=answer, args=(options.listen_fd,), daemon=True).start()
    note("started", options.name)
    if os.environ.get("COLLM_TEST_REFUSES") == options.name:
        sys.exit("this cannot be")
    print(f"collm is ready at http://{options.name}", flush=True)
    while not end.is_set():
        time.sleep(0.01)
    note("ended", options.name)


if __name__ == "__main__":
    main()
