"""Request bodies of the routes that generate.

Three kinds of fields: those that mean something here; those that OpenAI's clients send and whose
absence nobody notices (``Ignored``); and those that would change the answer but are not built yet,
of which only the neutral values pass (``only``). Everything else is refused by name. ``null`` means
the default.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from collm.server import fields
from collm.server.fields import only
from collm.server.limits import TokenLimit
from collm.types import SamplingParams

Ignored = Annotated[Any, Field(description="Accepted and ignored.")]

_GREEDY_BELOW = 1e-4
"""A temperature under this would overflow logits; its draws are the most likely token anyway."""
_DEFAULT_MAX_TOKENS = 16
"""The OpenAI API's own default for completions."""


class Body(BaseModel):
    """A JSON object without unknown fields, in which ``null`` stands for a field's default."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        frozen=True,
        use_attribute_docstrings=True,  # so that /openapi.json says what they say
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.model_fields
        return {key: value for key, value in data.items() if value is not None or key not in known}


class StreamOptions(Body):
    """What a stream carries besides text."""

    include_usage: bool = False
    """Whether a last chunk says how many tokens there were."""
    include_obfuscation: Ignored = None


class Message(Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: fields.Content
    """A text, or a list of parts of text."""
    name: Ignored = None
    tool_call_id: Ignored = None
    refusal: Ignored = None
    annotations: Ignored = None
    reasoning_content: Ignored = None
    tool_calls: Annotated[Any, only(None, [], hint="leave it out")] = None
    function_call: Annotated[Any, only(None, hint="leave it out")] = None
    audio: Annotated[Any, only(None, hint="leave it out")] = None


class GenerationBody(Body):
    """Fields that chat and completions share."""

    model: fields.Name
    """The base model's id, an adapter's name, or one version of it as ``NAME@N``."""
    stream: bool = False
    """Whether tokens are sent as they come, as server-sent events."""
    stream_options: StreamOptions | None = None
    n: fields.NumChoices = 1
    """How many answers to give."""
    temperature: fields.Temperature = 1.0
    """Softmax temperature; 0 takes the most likely token."""
    top_p: fields.PositiveShare = 1.0
    """Keep the smallest set of tokens whose probability reaches this."""
    presence_penalty: fields.Penalty = 0.0
    """Subtracted once from the logit of each token already in the answer."""
    frequency_penalty: fields.Penalty = 0.0
    """Subtracted from a token's logit for each time that it is in the answer."""
    seed: fields.Seed | None = None
    """Makes the draws repeatable."""
    stop: fields.Stops = Field(default_factory=list)
    """Texts before which the answer ends."""

    # Extensions, named as vLLM names them.
    top_k: fields.TopK = 0
    """Keep the k most likely tokens; 0 and -1 keep all."""
    min_p: fields.Share = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    repetition_penalty: fields.RepetitionPenalty = 1.0
    """Divide (or multiply, if negative) logits of tokens in prompt or answer by this."""
    min_tokens: fields.MinTokens = 0
    """Tokens before which the answer does not end."""
    ignore_eos: bool = False
    """Whether to go on past the end of the answer, up to the limit."""
    stop_token_ids: fields.TokenIds = Field(default_factory=list)
    """Tokens that end the answer."""
    include_stop_str_in_output: bool = False
    """Whether the stop text is part of the answer."""
    skip_special_tokens: Annotated[Any, only(None, True, hint="allowed: true")] = None

    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    logit_bias: Annotated[Any, only(None, {}, hint="leave it out or send {}")] = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise fields.wrong('allowed only with "stream": true', param="stream_options")
        return self

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int, num_logprobs: int | None) -> SamplingParams:
        """Return how tokens are chosen, with the limits that the prompt leaves."""
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=0.0 if self.temperature < _GREEDY_BELOW else self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=num_logprobs,
        )


class ChatBody(GenerationBody):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    """The conversation so far."""
    max_tokens: fields.MaxTokens | None = None
    """The older name of ``max_completion_tokens``."""
    max_completion_tokens: fields.MaxTokens | None = None
    """Most tokens of an answer; by default all that fit."""
    logprobs: bool = False
    """Whether each token comes with its log-probability."""
    top_logprobs: fields.NumLogprobs | None = None
    """Likeliest alternatives shown for each token."""
    add_generation_prompt: bool = True
    """Whether the template asks for the assistant's turn."""

    parallel_tool_calls: Ignored = None
    prediction: Ignored = None
    tools: Annotated[Any, only(None, [], hint="leave it out or send []")] = None
    tool_choice: Annotated[Any, only(None, "none", "auto", hint='allowed: "none", "auto"')] = None
    functions: Annotated[Any, only(None, [], hint="leave it out or send []")] = None
    function_call: Annotated[Any, only(None, "none", "auto", hint='allowed: "none", "auto"')] = None
    response_format: Annotated[
        Any, only(None, {"type": "text"}, hint='allowed: {"type": "text"}')
    ] = None
    modalities: Annotated[Any, only(None, ["text"], hint='allowed: ["text"]')] = None
    audio: Annotated[Any, only(None, hint="leave it out")] = None
    web_search_options: Annotated[Any, only(None, hint="leave it out")] = None
    reasoning_effort: Annotated[Any, only(None, "none", hint='allowed: "none"')] = None
    verbosity: Annotated[Any, only(None, "medium", hint='allowed: "medium"')] = None
    continue_final_message: Annotated[Any, only(None, False, hint="allowed: false")] = None

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise fields.wrong("differs from 'max_completion_tokens'; send one", param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise fields.wrong('allowed only with "logprobs": true', param="top_logprobs")
        return self

    @property
    def token_limit(self) -> TokenLimit:
        """The limit under either of its names; by default all that fits."""
        is_new_name = self.max_completion_tokens is not None
        return TokenLimit(
            requested=self.max_completion_tokens if is_new_name else self.max_tokens,
            default=None,
            field="max_completion_tokens" if is_new_name else "max_tokens",
            prompt_field="messages",
        )

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives reported per token; ``None`` reports nothing."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerationBody):
    """Body of ``POST /v1/completions``."""

    prompt: fields.Prompts
    """A text, its token ids, or several of either."""
    max_tokens: fields.MaxTokens | None = None
    """Most tokens of an answer; by default 16, as OpenAI has it."""
    logprobs: fields.NumLogprobs | None = None
    """Likeliest alternatives shown for each token."""

    echo: Annotated[Any, only(None, False, hint="allowed: false")] = None
    suffix: Annotated[Any, only(None, "", hint="leave it out")] = None
    best_of: Annotated[Any, only(None, 1, hint="allowed: 1; use 'n' for several choices")] = None
    prompt_logprobs: Annotated[Any, only(None, hint="leave it out")] = None

    @property
    def token_limit(self) -> TokenLimit:
        """The limit, by default OpenAI's own for this route."""
        return TokenLimit(
            requested=self.max_tokens,
            default=_DEFAULT_MAX_TOKENS,
            field="max_tokens",
            prompt_field="prompt",
        )
