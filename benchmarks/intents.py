"""The task that benchmarks learn: which intent a question has, by ``clinc150``. No torch."""

from random import Random

from collm.chats import Sample
from collm.workload.samples import by_group, load_samples

TASK = "clinc150"
OUT_OF_SCOPE = "oos"
TOKENS_A_SAMPLE = 38
"""With its instruction, about."""


def draw_questions(per_domain: int) -> list[Sample]:
    """Return held-out questions, as many of each domain; the same whenever asked for as many."""
    random = Random(0)
    return [
        question
        for domain, samples in by_group(load_samples(TASK, "test")).items()
        if domain != OUT_OF_SCOPE
        for question in random.sample(samples, min(per_domain, len(samples)))
    ]
