"""A made-up replica: the model of its chances, and a simulation of its steps beside it."""

from random import Random

from collm.cluster.planning.attainment import AttainmentModel, RequestMix
from collm.types import StepCoefficients

MIX = RequestMix(prefill_tokens=60.0, context_tokens=100.0, output_tokens=40.0)
MODEL = AttainmentModel(
    cost=StepCoefficients(
        constant_s=0.02, decode_s=0.002, prefill_s=0.001, context_s=1e-6, adapter_s=0.002
    ),
    ttft_s=0.8,
    tpot_s=0.1,
    mix=MIX,
)


def simulate(rate_per_s: float, seed: int, num_requests: int = 3_000) -> tuple[float, float, float]:
    """Steps with the model's own times over Poisson arrivals of geometric lengths.

    Returns:
        Mean sequences in the system, share of time busy, share of requests within both objectives.
    """
    random, cost = Random(seed), MODEL.cost
    now, arrivals = 0.0, []
    for _ in range(num_requests):
        now += random.expovariate(rate_per_s)
        arrivals.append(now)
    waiting = [(at, max(2, int(random.expovariate(1 / MIX.output_tokens)) + 1)) for at in arrivals]
    waiting.reverse()
    prefilling: list[list[float]] = []  # arrival, tokens left, output
    running: list[list[float]] = []  # arrival, first token at, output, tokens made
    now = busy = area = 0.0
    num_met = 0
    while waiting or prefilling or running:
        while waiting and waiting[-1][0] <= now:
            at, output = waiting.pop()
            prefilling.append([at, MIX.prefill_tokens, output])
        if not (prefilling or running):
            now = waiting[-1][0]
            continue
        step = cost.constant_s + cost.adapter_s + (cost.decode_s + 1e-4) * len(running)
        room = int((MODEL.tpot_s - step) / cost.prefill_s) if running else 512
        room = min(max(room, 16), 512)
        done = []
        for one in prefilling:
            taken = min(one[1], room)
            one[1] -= taken
            room -= taken
            step += cost.prefill_s * taken
            if one[1] == 0:
                done.append(one)
        now += step
        busy += step
        area += step * (len(prefilling) + len(running))
        for one in running:
            one[3] += 1
        for at, _, output in done:
            running.append([at, now, output, 1])
        prefilling = [one for one in prefilling if one[1] > 0]
        for one in [one for one in running if one[3] >= one[2]]:
            per_token = (now - one[1]) / max(1, one[2] - 1)
            num_met += one[1] - one[0] <= MODEL.ttft_s and per_token <= MODEL.tpot_s
        running = [one for one in running if one[3] < one[2]]
    return area / now, busy / now, num_met / num_requests
