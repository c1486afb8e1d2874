"""The same questions for every replica and model, after the traffic of a demo's cluster.

Traffic shows what users met, but its questions differ from minute to minute, and none is answered
by what a replica learned alone. So each replica answers a fixed sample of test questions as the
base model, by its own update of the first round, and by the version that it served at the end. That
update has seen fewer samples than the version: it shows that own samples do not teach others'
domains, not how well they teach their own. ``benchmarks/federated.py`` compares at equal numbers.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import httpx

from collm.chats import Sample
from collm.cli.demo_answers import Accuracy
from collm.cli.demo_cluster_progress import STAGES, ClusterProgress, Marks, Stage
from collm.cli.demo_own_updates import ALONE, OwnUpdates
from collm.cli.demo_settings import ADAPTER, TASK
from collm.cli.demo_sites import Site
from collm.cli.demo_traffic import MAX_SCORED_TOKENS
from collm.clock import Clock
from collm.metrics.records import RequestRecord
from collm.workload.replay import ReplayTarget, replay
from collm.workload.requests import WorkloadRequest
from collm.workload.samples import by_group, load_samples
from collm.workload.score import exact_match_score

QUESTIONS_PER_DOMAIN = 16
_SEED = 0
"""The run's own seed changes nothing here, so that runs can be compared."""
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Examinee:
    """A replica that answers under one model."""

    site: Site
    url: str
    model: str


def choose_questions(sites: Sequence[Site]) -> tuple[Sample, ...]:
    """Return as many test questions of each domain of the sites, the same in every run."""
    random = Random(_SEED)
    domains = frozenset[str]().union(*(site.domains for site in sites))
    return tuple(
        question
        for domain, samples in by_group(load_samples(TASK, "test")).items()
        if domain in domains
        for question in random.sample(samples, min(QUESTIONS_PER_DOMAIN, len(samples)))
    )


class Examiner:
    """Asks every replica the questions.

    Args:
        questions: What to ask.
        own_updates: What replicas learned alone.
        base_model: The base model's name.
        clock: Times the requests.
    """

    def __init__(
        self,
        questions: Sequence[Sample],
        own_updates: OwnUpdates,
        base_model: str,
        clock: Clock,
    ) -> None:
        self._questions = tuple(questions)
        self._own_updates = own_updates
        self._base_model = base_model
        self._clock = clock

    async def examine(self, client: httpx.AsyncClient, progress: ClusterProgress) -> None:
        """Have all live replicas answer, one model after the other."""
        try:
            state = (await client.get("/cluster")).raise_for_status().json()
        except httpx.HTTPError:
            return  # without a front there is no telling who is there
        urls = {row["id"]: row["url"] for row in state["replicas"] if row["is_live"]}
        sites = [seen.site for name, seen in progress.sites.items() if name in urls]
        # First what was served at the end, for a round may go on and replace it meanwhile.
        for stage in reversed(STAGES):
            progress.act = f"examining: {stage}"
            models = await self._models(stage, client, urls, state["adapters"].get(ADAPTER, {}))
            examinees = [
                Examinee(site, urls[site.name], models[site.name])
                for site in sites
                if site.name in models
            ]
            for examinee, marks in zip(
                examinees, await asyncio.gather(*map(self._ask, examinees)), strict=True
            ):
                progress.sites[examinee.site.name].exam[stage] = marks

    async def _models(
        self,
        stage: Stage,
        client: httpx.AsyncClient,
        urls: Mapping[str, str],
        active: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the model that stands for a stage, by replica; without those that have none."""
        if stage == "before":
            return dict.fromkeys(urls, self._base_model)
        if stage == "together":
            return dict(active)
        models = {}
        for name, url in urls.items():
            if self._own_updates.has(name):
                with contextlib.suppress(httpx.HTTPError):
                    await self._own_updates.serve(client, name, url)
                    models[name] = ALONE
        return models

    async def _ask(self, examinee: Examinee) -> Marks:
        target = ReplayTarget(base_url=examinee.url, model=examinee.model, timeout_s=_TIMEOUT_S)
        requests = [_request(question) for question in self._questions]
        records = await replay(requests, target, self._clock)
        return mark(examinee, self._questions, records)


def mark(
    examinee: Examinee, questions: Sequence[Sample], records: Sequence[RequestRecord]
) -> Marks:
    """Count right answers to own and to others' questions; what was not answered counts nowhere."""
    own: list[bool] = []
    foreign: list[bool] = []
    for question, record in zip(questions, records, strict=True):
        if record.outcome == "completed":
            is_own = question.group in examinee.site.domains
            (own if is_own else foreign).append(exact_match_score(record) == 1.0)
    return Marks(
        model=examinee.model,
        own=Accuracy(num_right=sum(own), num_answers=len(own)),
        foreign=Accuracy(num_right=sum(foreign), num_answers=len(foreign)),
    )


def _request(question: Sample) -> WorkloadRequest:
    return WorkloadRequest(
        at_s=0.0,
        kind="scored",
        site="",
        messages=question.prompt,
        expected=question.answer,
        max_tokens=MAX_SCORED_TOKENS,
        ignore_eos=False,
    )
