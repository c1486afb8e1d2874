import asyncio
import os
import sys

import pytest

from collm.cluster.hosts import LocalHost, ProcessSpec
from collm.errors import CollmError
from factories.waiting import WAIT_S

LISTEN = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("starting", flush=True)
print("x" * 100_000, end="", flush=True)
while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))):  # until all of it is taken in
    os.sched_yield()
print("x", flush=True)
print("collm is ready at http://127.0.0.1:4001", flush=True)
sys.stdin.read()
sys.exit(5)
"""


def spec(program, **settings):
    return ProcessSpec(name="r0", command=(sys.executable, "-c", program), **settings)


def test_process_tells_its_url_and_its_exit_code():
    async def main():
        process = await LocalHost().start(spec(LISTEN))
        assert await process.ready() == "http://127.0.0.1:4001"
        assert process.num_lines == 2  # one too long to be taken in is none
        assert process.pid > 0
        process.ask_to_end()
        return await process.ended()

    assert asyncio.run(main()) == 7


def test_killed_process_has_a_negative_exit_code():
    async def main():
        process = await LocalHost().start(spec(LISTEN))
        await process.ready()
        process.kill()
        return await process.ended()

    assert asyncio.run(main()) == -9


def test_process_that_ends_before_it_is_ready_has_no_url():
    async def main():
        process = await LocalHost().start(spec("raise SystemExit(3)"))
        return await process.ready(), await process.ended()

    assert asyncio.run(main()) == (None, 3)


def test_asking_an_ended_process_does_nothing():
    async def main():
        process = await LocalHost().start(spec("pass"))
        await process.ended()
        process.ask_to_end()
        process.kill()

    asyncio.run(main())


def test_end_is_seen_though_a_grandchild_keeps_the_output_open():
    program = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print("collm is ready at http://127.0.0.1:1", flush=True)
"""

    async def main():
        process = await LocalHost().start(spec(program))
        await process.ready()
        return await asyncio.wait_for(process.ended(), WAIT_S)

    assert asyncio.run(main()) == 0


def test_environment_and_shared_files_reach_the_process():
    program = """
import os, sys
os.write(int(sys.argv[1]), os.environ["COLOUR"].encode())
"""

    async def main(descriptor):
        wanted = ProcessSpec(
            name="r0",
            command=(sys.executable, "-c", program, str(descriptor)),
            environment={"COLOUR": "red"},
            shared_files=(descriptor,),
        )
        process = await LocalHost().start(wanted)
        assert await process.ended() == 0

    reading, writing = os.pipe()
    asyncio.run(main(writing))
    os.close(writing)
    with os.fdopen(reading) as file:
        assert file.read() == "red"


def test_program_that_does_not_exist_is_an_error_that_names_the_process():
    async def main():
        await LocalHost().start(ProcessSpec(name="r0", command=("/no/such/program",)))

    with pytest.raises(CollmError, match="r0 cannot be started"):
        asyncio.run(main())
