"""Values that cross rooms: requests, token events, progress. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, NewType

RequestId = NewType("RequestId", str)
VersionId = NewType("VersionId", str)
"""``NAME@LABEL`` for a published adapter version, or ``BASE`` for the bare base model."""

BASE = VersionId("base")
RollbackCause = Literal["asked", "regression"]
"""Why a version is taken back: somebody wanted it, or live feedback proved it worse."""
BASE_SLOT = -1
"""Adapter slot of tokens that use no adapter."""


class FinishReason(StrEnum):
    """Why a choice ended, in the words of the OpenAI API plus two of our own."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next tokens of a request are chosen."""

    max_tokens: int = 16
    """Most tokens generated per choice."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens are not sampled before this many tokens."""
    temperature: float = 1.0
    """Softmax temperature; 0 takes the most likely token."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    repetition_penalty: float = 1.0
    """Divide (or multiply, if negative) logits of tokens in prompt or output by this."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token already in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once per occurrence in the output."""
    seed: int | None = None
    """Makes the draws of this request repeatable; ``None`` seeds from its id."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a choice, besides the model's own end-of-sequence tokens."""
    ignore_eos: bool = False
    """Go on to ``max_tokens`` whatever the model says; load generators need it."""
    logprobs: int | None = None
    """Report log-probabilities with this many alternatives per token; ``None`` reports none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asked for; never changes."""

    request_id: RequestId
    model: str
    """The base model's id, ``NAME`` (active version) or ``NAME@LABEL`` (that very version)."""
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: SamplingParams
    n: int = 1
    """Number of choices, all served by one adapter version."""
    arrived_at_s: float
    """Arrival on the replica's monotonic clock."""
    traceparent: str | None = None
    """The trace that it belongs to, as W3C Trace Context has it."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The version a request is bound to from its first prefill token to its last output token."""

    version: VersionId
    slot: int
    """Device slot that holds the version; ``BASE_SLOT`` for the bare base model."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of a sampled token and of the most likely alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability), most likely first."""


class TokenEvent(NamedTuple):
    """One step's news about one choice of a request; a tuple, as there is one for each token."""

    request_id: RequestId
    choice: int
    token_id: int | None
    """The new token; ``None`` when the choice ended without one (abort, error)."""
    finish_reason: FinishReason | None = None
    """Set on the last event of a choice."""
    version: VersionId | None = None
    """The adapter version that serves the request; ``None`` if it was bound to none yet."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values came from the prefix cache."""
    admitted_at_s: float | None = None
    """When the choice first left the queue; ``None`` if it never did."""
    logprobs: TokenLogprobs | None = None
    error: Exception | None = None
    """Why the request failed, with ``FinishReason.ERROR``."""


class SequenceProgress(NamedTuple):
    """How far one sequence is, as pacing sees it.

    A tuple, as every step makes one of each sequence: frozen dataclasses take thrice as long.
    """

    arrived_at_s: float
    num_output_tokens: int
    """Tokens already sent; 0 while the first is still due."""
    num_remaining_prefill: int
    """Known tokens still to compute before the next one can be sampled; 1 while decoding."""
    num_context_tokens: int
    """Tokens whose keys and values are computed."""
    last_token_at_s: float | None
    """When the latest token was sent."""
    is_running: bool
    """Whether it holds KV blocks; otherwise it waits for admission."""
    first_token_at_s: float | None = None
    """When the first token was sent, which later tokens are due after; ``None`` if not known."""

    @property
    def is_decoding(self) -> bool:
        """Whether the next step computes its next token, and nothing else of it."""
        return self.is_running and self.num_remaining_prefill <= 1


class StepLoad(NamedTuple):
    """What one step computes: the features that its time depends on.

    A tuple for the same reason as ``SequenceProgress``: every decision of pacing makes a few.
    """

    num_decode_tokens: int = 0
    num_prefill_tokens: int = 0
    num_context_tokens: int = 0
    """Keys read by attention, summed over the step's sequences."""
    num_adapters: int = 0
    """Different adapter versions in the step, the base not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """A published adapter version, as lists and dashboards show it."""

    version: VersionId
    adapter: str
    digest: str
    """SHA-256 over the factors' names and bytes."""
    rank: int
    slot: int | None
    """Device slot while the version is loaded."""
    num_pins: int
    is_active: bool
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One name that a request may put in its ``model`` field."""

    id: str
    """The base model's id, ``NAME`` or ``NAME@LABEL``."""
    version: VersionId
    """The version that a request naming it would be bound to now."""
    parent: str | None = None
    """The base model's id, for an adapter or a version of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCoefficients:
    """A replica's fitted step cost: a step takes the sum of these times its ``StepLoad``."""

    constant_s: float
    """Seconds that every step takes."""
    decode_s: float
    """Seconds per decode token."""
    prefill_s: float
    """Seconds per prefill token."""
    context_s: float
    """Seconds per token that attention reads."""
    adapter_s: float
    """Seconds per different adapter version in the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSums:
    """How far gradients of micro-batches lie apart, summed over optimizer steps.

    Only steps of two micro-batches or more are in it. Each field adds up, over steps as over
    replicas; what they say together is in docs/coordination.md.
    """

    num_steps: int = 0
    num_differences: int = 0
    """Micro-batches less one, summed."""
    spread: float = 0.0
    """Sum of b |g_b - g|² over micro-batches: ``b`` is one's tokens and ``g_b`` its gradient per
    token of loss, ``g`` the whole step's."""
    square: float = 0.0
    """Sum of |g|² over steps."""
    inverse_tokens: float = 0.0
    """Sum of 1 / (tokens of the step)."""

    def plus(self, other: "GradientSums") -> "GradientSums":
        """Return the sums over both."""
        return GradientSums(
            num_steps=self.num_steps + other.num_steps,
            num_differences=self.num_differences + other.num_differences,
            spread=self.spread + other.spread,
            square=self.square + other.square,
            inverse_tokens=self.inverse_tokens + other.inverse_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTotals:
    """What an adapter was asked for and what it learned, since its replica started."""

    num_arrived: int = 0
    """Requests, those that the client took back or got wrong not counted."""
    num_ended: int = 0
    """Those of them that are over."""
    num_met: int = 0
    """Those of them that met every objective."""
    num_prompt_tokens: int = 0
    """Of requests that are over."""
    num_output_tokens: int = 0
    """Of requests that are over."""
    training_s: float = 0.0
    """Time of its quanta, evaluation included."""
    evaluation_s: float = 0.0
    """Time of those of them that evaluate."""
    num_trained_tokens: int = 0
    num_steps: int = 0
    """Optimizer steps."""
    loss_sum: float = 0.0
    """Training loss of each step times its tokens, in nats."""
    gradient: GradientSums = GradientSums()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTotals:
    """What a replica did since it started: a window is the difference of two of these."""

    serve_s: float = 0.0
    """Time of serving steps."""
    train_s: float = 0.0
    """Time of quanta that do not evaluate."""
    evaluate_s: float = 0.0
    idle_s: float = 0.0
    num_looked_up_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    num_cached_tokens: int = 0
    """Those of them that were found there."""
    num_gaps: int = 0
    """Times between two arrivals."""
    gap_sum_s: float = 0.0
    gap_square_sum_s2: float = 0.0
    """Sum of their squares, in s²."""
    adapters: Mapping[str, AdapterTotals] = field(default_factory=dict)
    """By the name that requests gave, without a version; the base model's id among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an adapter was found to be worth after so much training."""

    num_tokens: int
    """``AdapterTotals.num_trained_tokens`` as it was when the measured parameters came about."""
    loss: float
    """Cross-entropy on held-out samples, in nats per token."""
    num_samples: int
    """Held-out samples behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningState:
    """How an adapter learns on a replica now."""

    tokens_per_step: int
    """Sample tokens of an optimizer step, as its job is configured."""
    micro_batch_tokens: int
    """Most sample tokens of a micro-batch, as its job is configured: a step takes whole ones."""
    is_joint: bool
    """Whether it is learned together with other replicas, in rounds."""
    evaluation: Evaluation | None = None
    """The latest one; ``None`` before any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """What fresh feedback on a replica says so far of a version and the one before it."""

    active: VersionId
    """What is served, and watched."""
    previous: VersionId
    """What was served before: ``BASE``, if it is the first version."""
    capital: float
    """Of a gambler who began with 1 and bets that the active version is the worse one."""
    num_samples: int
    active_loss: float | None = None
    """Mean nats per supervised token; ``None`` without samples on which both are finite."""
    previous_loss: float | None = None
    is_finite: bool = True
    """Whether the active version's loss is a number wherever the other's is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSnapshot:
    """How a replica stands, as its front sees it."""

    replica_id: str
    url: str
    """Where it listens; known to the front, empty on the replica itself."""
    taken_at_s: float
    """When the front asked for it, on the front's monotonic clock: what was sent later is surely
    not counted in it."""
    num_running: int
    """Sequences that hold blocks."""
    num_waiting: int
    """Sequences that wait for admission."""
    queued_prefill_tokens: int
    """Tokens of running and waiting sequences still to prefill."""
    num_context_tokens: int
    """Tokens of running sequences whose keys and values are computed."""
    num_free_blocks: int
    block_size: int
    """Tokens in a block."""
    credit_share: float
    """Share of wall time that training has for sure, in [0, 1]."""
    bytes_per_token: float
    """Mean UTF-8 bytes of prompt text in a token."""
    step_coefficients: StepCoefficients
    ttft_s: float
    """Objective for the time to the first token."""
    tpot_s: float
    """Objective for the mean time per output token after the first."""
    names: tuple[str, ...]
    """Every name that a request's ``model`` may have here."""
    active: Mapping[str, VersionId]
    """Active version of each adapter."""
    quality: Mapping[str, float]
    """Per adapter, Q = 1 / max(CE, 0.1) of its active version on held-out samples."""
    quality_noise: Mapping[str, float]
    """Per adapter, the standard error of its quality."""
    max_model_len: int
    """Most tokens of a sequence, prompt and output."""
    is_draining: bool
    """Whether it finishes what it has and takes nothing new."""
    base_digest: str
    """Digest of the base model: adapters go only between replicas that have the same."""
    learning: Mapping[str, LearningState] = field(default_factory=dict)
    """By adapter that learns here; those whose jobs are paused are not in it."""
    totals: ReplicaTotals = ReplicaTotals()
    """What it did so far."""
    allocation: int = 0
    """Number of the allocation that is in force there; 0 for none."""
    credit_scale: float = 1.0
    """What missed objectives have left of the credit that was granted, in (0, 1]."""
    num_template_tokens: int = 0
    """Tokens that the chat template adds to a prompt's texts."""
    age_s: float = 0.0
    """When the replica gave it away, the time since its step loop had made it: a fraction of a
    second, unless the loop stands still."""
    watched: Mapping[str, WatchState] = field(default_factory=dict)
    """By adapter, what is found of a version that rounds promoted and that is served here."""
