"""What an adapter learns next: fresh samples, general text, then its own samples in their order."""

from collections.abc import Mapping
from dataclasses import dataclass

from collm.training.corpus import Corpus
from collm.training.microbatch import MicroBatch, pack
from collm.training.order import Order, Place
from collm.training.samples import TokenSample


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a stream is: enough to go on after a restart with the same seed."""

    own: Place = Place()
    general: Place = Place()
    replay_due: float = 0.0
    """Tokens of general text that are still to come for what was dealt."""

    def to_meta(self) -> dict[str, str]:
        """Return it as strings for a checkpoint."""
        return {
            "epoch": str(self.own.epoch),
            "key": str(self.own.key),
            "general_epoch": str(self.general.epoch),
            "general_key": str(self.general.key),
            "replay_due": repr(self.replay_due),
        }

    @staticmethod
    def from_meta(meta: Mapping[str, str]) -> "Cursor":
        """Read what ``to_meta`` wrote; the start, if something else was written."""
        if "key" not in meta:
            return Cursor()
        return Cursor(
            _place(meta["epoch"], meta["key"]),
            _place(meta["general_epoch"], meta["general_key"]),
            float(meta["replay_due"]),
        )


def _place(epoch: str, key: str) -> Place:
    return Place(int(epoch), None if key == "None" else int(key))


class SampleStream:
    """Deals micro-batches from a corpus.

    Args:
        corpus: What to deal; may change between two micro-batches.
        seed: Names the orders; an epoch has the same order whenever it is dealt.
        replay_share: Share of the tokens that are general text, if there is any, in the long run:
            what one micro-batch owes, the next one begins with.
        num_epochs: Passes over the corpus after which the stream ends; ``None`` never ends.
    """

    def __init__(
        self, corpus: Corpus, seed: int, *, replay_share: float, num_epochs: int | None = None
    ) -> None:
        self._corpus = corpus
        self._share = replay_share
        self._num_epochs = num_epochs
        self._own = Order(corpus.training, f"{seed}")
        self._general = Order(corpus.general, f"{seed}/general")
        self._replay_due = 0.0
        self._committed = self.cursor
        self._fresh_dealt: list[str] = []

    @property
    def cursor(self) -> Cursor:
        """Where the next micro-batch comes from."""
        return Cursor(self._own.place, self._general.place, self._replay_due)

    @property
    def committed(self) -> Cursor:
        """Where ``rewind`` goes back to."""
        return self._committed

    @property
    def has_next(self) -> bool:
        """Whether there is anything to deal now; samples may still come."""
        return bool(self._corpus.training.samples) and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether all passes are over."""
        return self._num_epochs is not None and self._own.place.epoch >= self._num_epochs

    @property
    def done_share(self) -> float | None:
        """Share of all passes that was dealt; ``None`` if they never end."""
        if self._num_epochs is None:
            return None
        return min(1.0, (self._own.place.epoch + self._own.dealt_share) / self._num_epochs)

    def fits(self, max_tokens: int) -> bool:
        """Return whether ``next`` would keep to ``max_tokens``; call it only while ``has_next``."""
        samples = self._corpus.training.samples
        fresh = next((samples[name] for name in self._corpus.fresh if name in samples), None)
        following = fresh or self._own.peek()
        return following is not None and len(following.token_ids) <= max_tokens

    def seek(self, cursor: Cursor) -> None:
        """Go on from ``cursor``."""
        self._own.seek(cursor.own)
        self._general.seek(cursor.general)
        self._replay_due = cursor.replay_due
        self.commit()

    def commit(self) -> None:
        """Note that what was dealt so far was learned."""
        self._committed = self.cursor
        self._fresh_dealt.clear()

    def rewind(self) -> None:
        """Deal again what was dealt since the last commit."""
        self._corpus.fresh.extendleft(reversed(self._fresh_dealt))
        self.seek(self._committed)

    def next(self, max_tokens: int) -> MicroBatch:
        """Return the next samples that fit ``max_tokens`` together, at least one.

        Call it only while ``has_next``.
        """
        chosen: list[TokenSample] = []
        self._replay_due = min(self._replay_due, max_tokens)
        room = self._take_general(chosen, max_tokens)
        room -= self._take_fresh(chosen, min(room, int((1.0 - self._share) * max_tokens)))
        while not chosen or self._fits(room):
            sample = self._own.take()
            room -= self._count(sample)
            chosen.append(sample)
        return pack(chosen)

    def _fits(self, room: int) -> bool:
        if not self.has_next:
            return False
        following = self._own.peek()
        return following is not None and len(following.token_ids) <= room

    def _take_general(self, chosen: list[TokenSample], room: int) -> int:
        """Deal the general text that is due and fits; return the room that is left."""
        while (sample := self._general.peek()) is not None:
            num_tokens = len(sample.token_ids)
            if num_tokens > min(room, self._replay_due):
                break
            chosen.append(self._general.take())
            self._replay_due -= num_tokens
            room -= num_tokens
        return room

    def _take_fresh(self, chosen: list[TokenSample], room: int) -> int:
        """Deal fresh samples that fit; return their tokens. The first fits wherever it is alone."""
        fresh, samples, num_taken = self._corpus.fresh, self._corpus.training.samples, 0
        while fresh:
            sample = samples.get(fresh[0])
            if sample is not None:
                num_tokens = len(sample.token_ids)
                if chosen and num_taken + num_tokens > room:
                    break
                chosen.append(sample)
                self._fresh_dealt.append(sample.sample_id)
                num_taken += self._count(sample)
            fresh.popleft()
        return num_taken

    def _count(self, sample: TokenSample) -> int:
        """Return a dealt sample's tokens, and owe general text for them."""
        num_tokens = len(sample.token_ids)
        if self._corpus.general.samples:
            self._replay_due += num_tokens * self._share / (1.0 - self._share)
        return num_tokens
