"""What one adapter learns from, what it is judged by, and who never crosses over."""

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from collm.errors import DataError
from collm.gate.config import GENERAL
from collm.training.config import JobConfig
from collm.training.samples import TokenSample, clipped

_GENERAL_HELD_OUT_SHARE = 0.125


class SamplePool:
    """Samples by id, and what came when, so that orders drawn from it can keep up."""

    def __init__(self) -> None:
        """Start with none."""
        self._samples: dict[str, TokenSample] = {}
        self.additions: list[str] = []
        """Ids in the order in which they came, removed ones and repetitions included."""

    @property
    def samples(self) -> Mapping[str, TokenSample]:
        """Samples by id."""
        return self._samples

    def put(self, sample: TokenSample) -> None:
        """Add a sample, or replace the one with its id."""
        self._samples[sample.sample_id] = sample
        self.additions.append(sample.sample_id)

    def discard(self, sample_id: str) -> bool:
        """Remove a sample; return whether it was there."""
        return self._samples.pop(sample_id, None) is not None


class Corpus:
    """One adapter's samples: those it trains on, those held out, general text, fresh feedback.

    A text that was once held out is never trained on, whatever is added or removed.

    Args:
        samples: What there is at the start; may be empty.
        held_out_share: Share of the texts that are held out, chosen by their hash.
        held_out_texts: Digests of texts that are held out in any case.
        trained_texts: Digests of texts that are trained on in any case.
        max_held_out: Most held-out samples kept, general text not counted; what is cut off is not
            trained on either.
        validation: Held out in place of a share, if given; then all other texts are trained on.
        general: General text; an eighth is held out as the slice ``GENERAL``.
    """

    def __init__(
        self,
        samples: Iterable[TokenSample],
        *,
        held_out_share: float,
        max_held_out: int,
        held_out_texts: frozenset[str] = frozenset(),
        trained_texts: frozenset[str] = frozenset(),
        validation: Sequence[TokenSample] | None = None,
        general: Iterable[TokenSample] = (),
    ) -> None:
        self.training = SamplePool()
        self.general = SamplePool()
        self.fresh: deque[str] = deque()
        """Ids of samples that came last and were not dealt yet, oldest first."""
        self._held_out: dict[str, TokenSample] = {}
        self._by_hash: list[tuple[int, str]] = []
        """Heap over ``_held_out``, the largest hash of a text first; removed ones may linger."""
        self._general_held_out: dict[str, TokenSample] = {}
        self._held_out_texts: set[str] = set()
        self._removed: set[str] = set()
        self._share = 0.0 if validation is not None else held_out_share
        self._chosen_texts = held_out_texts
        self._spared_texts = trained_texts
        self._max_held_out = max_held_out
        for sample in validation or ():
            self._hold_out(sample)
        for sample in samples:
            self._sort_in(sample)
        self._add_general(general)

    @property
    def num_training(self) -> int:
        """Samples to train on, general text not counted."""
        return len(self.training.samples)

    @property
    def num_held_out(self) -> int:
        """Samples to be judged by, general text not counted."""
        return len(self._held_out)

    def add(self, samples: Iterable[TokenSample]) -> None:
        """Take in samples that came while the job runs; those to train on are dealt first."""
        self.fresh.extend(sample.sample_id for sample in samples if self._sort_in(sample))

    def remove(self, sample_id: str) -> bool:
        """Forget a sample for good, on whichever side it is; return whether it was there."""
        self._removed.add(sample_id)
        was_held_out = self._held_out.pop(sample_id, None) is not None
        return self.training.discard(sample_id) or was_held_out

    def held_out(self, sample_id: str) -> TokenSample | None:
        """Return a held-out sample, general text included; ``None`` if it was removed."""
        return self._held_out.get(sample_id) or self._general_held_out.get(sample_id)

    def held_out_ids(self) -> dict[str, list[str]]:
        """Return the ids of held-out samples by slice, general text included."""
        ids: dict[str, list[str]] = {}
        for sample in (*self._held_out.values(), *self._general_held_out.values()):
            ids.setdefault(sample.slice, []).append(sample.sample_id)
        return ids

    def _sort_in(self, sample: TokenSample) -> bool:
        """Put a sample on its side; return whether it is to be trained on."""
        if sample.sample_id in self._removed:
            return False
        if sample.text_digest in self._held_out_texts:
            return False
        if self._is_to_judge_by(sample):
            self._hold_out(sample)
            return False
        self.training.put(sample)
        return True

    def _is_to_judge_by(self, sample: TokenSample) -> bool:
        if sample.text_digest in self._spared_texts:
            return False
        return sample.is_held_out(self._share) or sample.text_digest in self._chosen_texts

    def _hold_out(self, sample: TokenSample) -> None:
        """Hold a sample out, once for each text, and the smallest hashes if there are too many."""
        if sample.text_digest in self._held_out_texts:
            return
        self._held_out_texts.add(sample.text_digest)
        self._held_out[sample.sample_id] = sample
        heapq.heappush(self._by_hash, (-int(sample.text_digest, 16), sample.sample_id))
        while len(self._held_out) > self._max_held_out:
            _, last = heapq.heappop(self._by_hash)
            self._held_out.pop(last, None)

    def _add_general(self, samples: Iterable[TokenSample]) -> None:
        """Add general text but for what is the adapter's own; ids of general text name its text."""
        own = {sample.text_digest for sample in self.training.samples.values()}
        for sample in samples:
            if sample.sample_id in own or sample.sample_id in self._held_out_texts:
                continue
            if sample.is_held_out(_GENERAL_HELD_OUT_SHARE):
                self._general_held_out[sample.sample_id] = sample
                self._held_out_texts.add(sample.sample_id)
            else:
                self.general.put(sample)


def open_corpus(
    config: JobConfig,
    samples: Sequence[TokenSample],
    *,
    feedback: Sequence[TokenSample] = (),
    validation: Sequence[TokenSample] | None = None,
    general: Sequence[TokenSample] = (),
) -> Corpus:
    """Sort a job's samples; with none, the job waits for samples that come later.

    Without ``validation``, of ``samples`` at least the share is held out, rounded down, and at
    least one text, and of two or more at least one is trained on: hashes alone would leave a file
    of a few chats none on one side now and then.

    Args:
        config: The share, and how much of general text is used.
        samples: What the job was started with; the same ones at each start, or texts change sides.
        feedback: What came since.
        validation: See ``Corpus``.
        general: See ``Corpus``.

    Raises:
        DataError: There are samples, but none is left on one side.
    """
    assert all(sample.slice == GENERAL for sample in general), "see prepare_general"
    chosen, spared = frozenset[str](), frozenset[str]()
    if validation is None:
        chosen, spared = _settled_texts(samples, config.held_out_share)
    corpus = Corpus(
        (*samples, *feedback),
        held_out_share=config.held_out_share,
        max_held_out=config.max_held_out,
        held_out_texts=chosen,
        trained_texts=spared,
        validation=validation,
        general=clipped(general, config.micro_batch_tokens),
    )
    if not samples or (corpus.num_training and corpus.num_held_out):
        return corpus
    if validation is not None:
        need = "train on" if corpus.num_held_out else "evaluate on"
        raise DataError(
            f"{len(samples)} usable samples and {len(validation)} for validation leave none to"
            f" {need}; a text that is in both only validates"
        )
    raise DataError(
        f"{len(samples)} usable samples with one and the same text leave none to train on, for one"
        " is kept to judge by; add other samples"
    )


def _settled_texts(
    samples: Sequence[TokenSample], share: float
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the texts held out whatever the others are, and those trained on, if any must be.

    The former have the least hashes, as many as the share says and at least one. Of the latter
    there is one, that of the greatest hash, and only where the share would take all.
    """
    texts = sorted({(sample.text_share, sample.text_digest) for sample in samples})
    num_chosen = max(1, int(share * len(texts)))
    chosen = frozenset(digest for _, digest in texts[:num_chosen])
    takes_all = bool(texts) and texts[-1][0] < share
    return chosen, frozenset({texts[-1][1]} - chosen) if takes_all else frozenset()
