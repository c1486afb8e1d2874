"""Training jobs made from their rows: text to tokens, and the state to go on from."""

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from safetensors.torch import load_file

from collm.chats import Sample, parse_samples
from collm.errors import AdapterError, ConfigError, RequestError
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState, initial_state
from collm.model.decoder import Decoder
from collm.model.tokenizer import Tokenizer
from collm.pacing.cost import QuantumCostModel
from collm.replica.archive import CHECKPOINT_BASE, CHECKPOINT_FILE, CHECKPOINT_JOB
from collm.replica.courtesy import Courtesy
from collm.replica.job_settings import requested_config, samples_per_step
from collm.replica.job_warnings import left_out, too_few_held_out
from collm.replica.library import Library
from collm.store.data_folder import DataFolder
from collm.store.feedback import Feedback
from collm.store.jobs import JobRecord
from collm.training.base_version import BaseVersion, fresh_state
from collm.training.config import JobConfig, TrainingConfig
from collm.training.corpus import Corpus, open_corpus
from collm.training.job import Job
from collm.training.measuring import Limits
from collm.training.round_job import RoundJob
from collm.training.samples import (
    Conversation,
    PreparedSamples,
    TokenSample,
    encode_sample,
    prepare_samples,
)
from collm.training.trainer import AnyJob
from collm.types import VersionId

_log = logging.getLogger(__name__)

_MAX_HELD_OUT_SHARE = 0.25
"""Of a small file that a client uploaded."""
_FEEDBACK_HELD_OUT_SHARE = 0.2
"""At least so much of what a job learns that has no file: nobody knows how much is to come, and the
share may not change with it. 30 pieces of feedback leave the 6 that can prove something, and 120
the 24 that a trial wants."""


_WATCHED_TOKENS = 1024
"""Longest feedback, prompt and answer, that versions are watched on while no job learns it."""


@dataclass(frozen=True, slots=True)
class BuiltJob:
    """A job ready to be trained."""

    job: AnyJob
    base: VersionId | None
    """The version that it starts from."""
    feedback_ids: frozenset[str]
    """The feedback that it knows."""
    warnings: tuple[str, ...]
    """What whoever started it should know about its data."""


class JobBuilder:
    """Builds jobs; any thread may use it.

    Args:
        decoder: The frozen weights.
        tokenizer: Makes tokens of text.
        data: Rows, files, feedback and checkpoints.
        library: Reads the version to start from.
        datasets: Samples of the jobs in the configuration file, by the names it gives them.
        general: General text as tokens.
        training: Settings of all jobs.
        replica: This replica's name.
        sizes: Bounds the quanta.
        max_quantum_s: Longest quantum wanted.
    """

    def __init__(
        self,
        *,
        decoder: Decoder,
        tokenizer: Tokenizer,
        data: DataFolder,
        library: Library,
        datasets: Mapping[str, Sequence[Sample]],
        general: Sequence[TokenSample],
        training: TrainingConfig,
        replica: str,
        sizes: QuantumCostModel,
        max_quantum_s: float,
    ) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._data = data
        self._library = library
        self._datasets = datasets
        self._general = general
        self._training = training
        self._replica = replica
        self._sizes = sizes
        self._max_quantum_s = max_quantum_s

    def build(self, record: JobRecord, courtesy: Courtesy) -> BuiltJob:
        """Build a job from its row, with what its last checkpoint holds.

        Raises:
            DataError: Its samples cannot be used.
            UnknownObjectError: Its file is gone.
            ConfigError: Its checkpoint was written with other settings, or for another base.
        """
        config = self.config(record)
        known = self._data.feedback.samples(record.adapter)
        prepared = self._prepare(
            courtesy.spaced(self._conversations(record, config.data, record.training_file)),
            config,
        )
        samples, warnings = prepared.samples, [*left_out(prepared, "training")]
        if not record.is_configured:
            config = _held_out_enough(config, len(samples), self._training.gate.min_samples)
        validation = None
        if config.validation is not None:
            source = self._conversations(record, config.validation, record.validation_file)
            checked = self._prepare(courtesy.spaced(source), config)
            warnings += left_out(checked, "validation")
            validation = checked.samples
        corpus = self._corpus(record, config, samples, validation, known, courtesy)
        if config.adapter not in self._training.rounds:  # there others decide as well
            warnings += too_few_held_out(corpus.num_held_out, self._training.gate.error)
        base, start = self._start(config)
        config = _sized(config, samples_per_step(record), samples)
        job = self._job(config, base, start, corpus)
        self._restore(job, record)
        feedback_ids = frozenset(feedback.feedback_id for feedback in known)
        return BuiltJob(job, base, feedback_ids, tuple(warnings))

    def config(self, record: JobRecord) -> JobConfig:
        """Return how a job trains, by the configuration file or by its row."""
        if record.is_configured:
            return next(job for job in self._training.jobs if job.adapter == record.adapter)
        return requested_config(record)

    def find(self, adapter: str) -> JobRecord | None:
        """Return the adapter's job that has not ended, if there is one."""
        jobs = self._data.jobs.unfinished()
        return next((record for record in jobs if record.adapter == adapter), None)

    def check_text(self, record: JobRecord, messages: Sequence[Mapping[str, Any]]) -> None:
        """Raise ``RequestError`` unless a job could learn a conversation."""
        config = self.config(record)
        try:
            encode_sample(
                Conversation(messages=messages, learned=_answer_of(messages)),
                self._tokenizer,
                max_tokens=config.micro_batch_tokens,
            )
        except RequestError as error:
            raise RequestError(
                f"the adapter's job cannot learn this: {error}", param="answer", code=error.code
            ) from error

    def encode_feedback(
        self, record: JobRecord | None, feedback: Iterable[Feedback]
    ) -> tuple[TokenSample, ...]:
        """Return the samples that feedback makes for a job; without what does not fit it.

        Without a job they are for the watch over what is served.
        """
        max_tokens = _WATCHED_TOKENS if record is None else self.config(record).micro_batch_tokens
        samples = []
        for item in feedback:
            assert item.messages is not None
            conversation = Conversation(
                messages=item.messages,
                sample_id=item.feedback_id,
                weight=item.weight,
                learned=_answer_of(item.messages),
            )
            try:
                samples.append(encode_sample(conversation, self._tokenizer, max_tokens=max_tokens))
            except RequestError as error:
                _log.warning("%s is not used: %s", item.feedback_id, error)
        return tuple(samples)

    def _job(
        self, config: JobConfig, base: VersionId | None, start: AdapterState, corpus: Corpus
    ) -> AnyJob:
        training = self._training
        if config.adapter not in training.rounds:
            return Job(
                config,
                self._decoder,
                start,
                corpus,
                training.gate,
                self._sizes,
                self._max_quantum_s,
                training.activations,
            )
        return RoundJob(
            config,
            self._decoder,
            BaseVersion(version=base, state=start),
            corpus,
            training.gate,
            Limits(self._sizes, self._max_quantum_s, config.micro_batch_tokens),
            training.activations,
            self._replica,
        )

    def _corpus(
        self,
        record: JobRecord,
        config: JobConfig,
        samples: Sequence[TokenSample],
        validation: Sequence[TokenSample] | None,
        known: Sequence[Feedback],
        courtesy: Courtesy,
    ) -> Corpus:
        feedback = self.encode_feedback(record, courtesy.spaced(known))
        if samples:
            return open_corpus(
                config,
                samples,
                feedback=feedback,
                validation=validation,
                general=self._general,
            )
        return Corpus(  # it learns from feedback alone, and waits until there is enough
            feedback,
            held_out_share=config.held_out_share,
            max_held_out=config.max_held_out,
            general=self._general,
        )

    def _conversations(
        self, record: JobRecord, name: str, file_id: str | None
    ) -> Iterable[Conversation]:
        """Return a configured data set by its name, an uploaded file, or nothing."""
        samples: Iterable[Sample] = ()
        if record.is_configured:
            samples = self._datasets[name]
        elif file_id is not None:
            samples = parse_samples(io.BytesIO(self._data.files.read(file_id)))
        return map(conversation_of, samples)

    def _prepare(self, conversations: Iterable[Conversation], config: JobConfig) -> PreparedSamples:
        prepared = prepare_samples(
            conversations, self._tokenizer, max_tokens=config.micro_batch_tokens
        )
        if prepared.num_unusable:
            _log.warning(
                "%s: %d samples left out, %d of them too long; the first: %s",
                config.adapter,
                prepared.num_unusable,
                prepared.num_too_long,
                prepared.reason,
            )
        return prepared

    def _start(self, config: JobConfig) -> tuple[VersionId | None, AdapterState]:
        """Return the version to start from, if one can be read, and its state or a fresh one."""
        base = self._data.decisions.active().get(config.adapter)
        if base is not None:
            try:
                return base, self._library.load(base)[1]
            except AdapterError as error:
                _log.warning("%s does not start from %s: %s", config.adapter, base, error)
        layout = lora_layout(self._decoder.spec, config.rank)
        if config.adapter in self._training.rounds:
            return None, fresh_state(config.adapter, layout)
        return None, initial_state(layout, config.seed)

    def _restore(self, job: AnyJob, record: JobRecord) -> None:
        checkpoint = self._data.checkpoints.load(record.adapter)
        if checkpoint is None or checkpoint.meta.get(CHECKPOINT_JOB) != record.job_id:
            return
        if checkpoint.meta.get(CHECKPOINT_BASE) != self._library.base_digest:
            raise ConfigError(
                f"the training state of {record.adapter!r} was written for another base model; "
                "use another replica.data_dir"
            )
        state = checkpoint.folder / CHECKPOINT_FILE
        if state.exists():
            job.restore(load_file(state), checkpoint.meta)
        else:  # another version became active since
            job.restore_place(checkpoint.meta)
        _log.info("%s goes on at step %d", record.adapter, job.num_steps)


def conversation_of(sample: Sample) -> Conversation:
    """Return a sample as training takes it."""
    messages = [{"role": turn.role, "content": turn.content} for turn in sample.messages]
    learned = frozenset(i for i, turn in enumerate(sample.messages) if turn.is_learned)
    return Conversation(messages=messages, slice=sample.group, learned=learned)


def _answer_of(messages: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the turn that feedback is about: nobody said what those in the prompt are worth."""
    return frozenset({len(messages) - 1})


def _held_out_enough(config: JobConfig, num_samples: int, min_samples: int) -> JobConfig:
    """Hold out more of a small file, or no candidate of it could ever be proven better.

    By the file alone, which never changes: feedback must not move samples to the other side.
    """
    share = _FEEDBACK_HELD_OUT_SHARE
    if num_samples:
        share = min(_MAX_HELD_OUT_SHARE, min_samples / num_samples)
    return replace(config, held_out_share=max(config.held_out_share, share))


def _sized(config: JobConfig, num_samples: int | None, samples: Sequence[TokenSample]) -> JobConfig:
    """Turn samples per optimizer step into tokens, by the mean length."""
    if num_samples is None or not samples:
        return config
    num_tokens = sum(len(sample.token_ids) for sample in samples)
    return replace(config, tokens_per_step=max(1, round(num_samples * num_tokens / len(samples))))
