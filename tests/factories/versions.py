"""Versions that somebody asks a step loop to serve, and what each answers alone."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from collm.lora.state import AdapterState
from collm.lora.store import version_id
from collm.replica.inbox import Published, Unload
from collm.types import VersionInfo
from factories.engines import build_engine, generate, random_adapter
from factories.replicas import Rig, greedy


def ask_for(rig: Rig, adapter: str, label: str, state: AdapterState) -> "Future[VersionInfo]":
    """Put the message that an import or a promotion by hand sends; the reply is still to come."""
    reply: Future[VersionInfo] = Future()
    message = Published(
        adapter=adapter,
        version=version_id(adapter, label),
        state=state,
        metadata={},
        numbers={},
        is_local=False,
        reply=reply,
    )
    rig.inbox.put(message)
    return reply


def load(rig: Rig, label: str, seed: int, adapter: str = "a") -> VersionInfo:
    """Load ``random_adapter(seed=seed)`` and step until it is active."""
    reply = ask_for(rig, adapter, label, random_adapter(rig.engine.spec, seed=seed))
    rig.run_until(reply.done)
    return reply.result(0)


def unload(rig: Rig, adapter: str = "a") -> None:
    """Unload an adapter and step until that is confirmed."""
    reply: Future[None] = Future()
    rig.inbox.put(Unload(adapter, reply))
    rig.run_until(reply.done)
    reply.result(0)


def answer_alone(
    checkpoint: Path, seed: int | None, prompt: Sequence[int], max_tokens: int
) -> list[int]:
    """What ``random_adapter(seed=seed)``, or the base, answers in an engine of its own."""
    engine = build_engine(checkpoint)
    model = "base"
    if seed is not None:
        model = engine.publish("a", "1", random_adapter(engine.spec, seed=seed))
    return generate(engine, [greedy("alone", prompt, model, max_tokens=max_tokens)])["alone"]
