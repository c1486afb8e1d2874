"""How many tokens an answer may have."""

from dataclasses import dataclass

from collm.errors import RequestError

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimit:
    """The most tokens that a client lets the answer have, and what it calls them."""

    requested: int | None
    """The client's limit, which must fit; ``None`` takes the default."""
    default: int | None
    """Limit without a request, cut to what fits; ``None`` takes all that fits."""
    field: str
    """Field of the request that holds the limit."""
    prompt_field: str
    """Field of the request that holds the prompt."""


def check_num_messages(num_messages: int, max_model_len: int) -> None:
    """Refuse a chat that cannot fit before its template is run over it, which takes a while.

    Raises:
        RequestError: There are more messages than the model's context has tokens.
    """
    if num_messages > max_model_len:
        raise RequestError(
            f"'messages': {num_messages} messages; this model's context length is {max_model_len} "
            "tokens, and each message takes at least one.",
            param="messages",
            code=CONTEXT_LENGTH_EXCEEDED,
        )


def fit_max_tokens(limit: TokenLimit, num_prompt_tokens: int, max_model_len: int) -> int:
    """Return how many tokens may be generated after a prompt.

    Args:
        limit: What the client asked for.
        num_prompt_tokens: Tokens of the prompt.
        max_model_len: Most tokens of prompt and output together.

    Raises:
        RequestError: The prompt, or prompt and limit together, exceed ``max_model_len``.
    """
    num_left = max_model_len - num_prompt_tokens
    if num_left < 1:
        raise RequestError(
            f"'{limit.prompt_field}': the prompt has {num_prompt_tokens} tokens; this model's "
            f"context length is {max_model_len} tokens, of which at least one is needed for the "
            "answer.",
            param=limit.prompt_field,
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    if limit.requested is None:
        return num_left if limit.default is None else min(limit.default, num_left)
    if limit.requested > num_left:
        raise RequestError(
            f"'{limit.field}': the prompt has {num_prompt_tokens} tokens and {limit.requested} "
            f"more were asked for; this model's context length is {max_model_len} tokens, so at "
            f"most {num_left} can follow.",
            param=limit.field,
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    return limit.requested
