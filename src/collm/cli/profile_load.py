"""The load under which a replica is profiled, from a client in its process."""

import asyncio
import statistics
from contextlib import aclosing
from random import Random

from collm.replica.client import ReplicaClient
from collm.types import Request, RequestId, SamplingParams

LONE_PROMPT_TOKENS = 32
_MAX_TOKEN_ID = 200
"""Any vocabulary has so many; what is said does not matter."""
_MAX_CONCURRENT = 32
"""More than a replica bears, so that nothing is said of crowds that were never seen."""
_LONE_REQUESTS = 12


class ProfileLoad:
    """Sends requests of drawn lengths.

    Args:
        client: Of the replica.
        model: What requests ask for.
        random: Draws lengths and tokens.
    """

    def __init__(self, client: ReplicaClient, model: str, random: Random) -> None:
        self._client = client
        self._model = model
        self._random = random
        self._num_sent = 0

    async def lone(self) -> float:
        """Return the median time to the first token of requests of one short prompt, one by one."""
        times_s = []
        for _ in range(_LONE_REQUESTS):
            started_s = self._client.now_s()
            times_s.append(await self._send(LONE_PROMPT_TOKENS, 1) - started_s)
        return statistics.median(times_s)

    async def mixed(self, seconds: float) -> None:
        """Keep a number of requests open that changes all the time, from one to many."""
        ends_s = self._client.now_s() + seconds
        while (now_s := self._client.now_s()) < ends_s:
            num_clients = round(2 ** self._random.uniform(0.0, _MAX_CONCURRENT.bit_length() - 1))
            until_s = min(now_s + 0.05 * seconds, ends_s)
            await asyncio.gather(*(self._client_loop(until_s) for _ in range(num_clients)))

    async def _client_loop(self, until_s: float) -> None:
        while self._client.now_s() < until_s:
            num_prompt = round(2 ** self._random.uniform(3.0, 8.6))
            await self._send(num_prompt, self._random.randint(8, 64))

    async def _send(self, num_prompt: int, num_output: int) -> float:
        """Send a request, wait for its end, and return when its first token came."""
        self._num_sent += 1
        request = Request(
            request_id=RequestId(f"profile-{self._num_sent}"),
            model=self._model,
            prompt=tuple(self._random.randrange(3, _MAX_TOKEN_ID) for _ in range(num_prompt)),
            sampling=SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True),
            arrived_at_s=self._client.now_s(),
        )
        first_s = 0.0
        (events,) = self._client.submit(request)
        async with aclosing(events) as stream:
            async for event in stream:
                if event.error is not None:
                    raise event.error
                if not first_s and event.token_id is not None:
                    first_s = self._client.now_s()
        return first_s
