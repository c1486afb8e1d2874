"""Text to tokens and back, chats to prompts and to training samples.

One template and one encoding serve both requests and training, so that a model is trained on
exactly the tokens that it will be asked to continue.
"""

import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import TemplateError
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens

from collm.errors import ModelError, RequestError

Message = Mapping[str, object]
"""One chat message: ``role``, ``content`` and whatever else the model's template reads."""


@dataclass(frozen=True, slots=True)
class TrainingTokens:
    """A chat as training sees it."""

    token_ids: tuple[int, ...]
    is_supervised: tuple[bool, ...]
    """Per token: whether the model is to learn to produce it."""


class Tokenizer:
    """A model's tokenizer and chat template; may be used from several threads.

    Args:
        folder: Checkpoint folder with ``tokenizer.json``.
        eos_token_ids: The model's end-of-sequence tokens.
        num_embeddings: Rows of the model's vocabulary table; texts that need a token beyond it are
            refused. ``None`` trusts the tokenizer.

    Raises:
        ModelError: The folder has no tokenizer that can be read.
    """

    def __init__(
        self, folder: Path, eos_token_ids: Iterable[int], num_embeddings: int | None = None
    ) -> None:
        if not (folder / "tokenizer.json").is_file():
            raise ModelError(f"{folder} has no tokenizer.json")
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read the tokenizer in {folder}: {error}") from error
        self._backend: Backend = self._tokenizer.backend_tokenizer
        # A fine-tuned folder may have added tokens without adding rows to the model.
        num_known = len(self._tokenizer)
        self._vocab_size = num_known if num_embeddings is None else min(num_known, num_embeddings)
        own_eos = self._tokenizer.eos_token_id
        known_eos = (*eos_token_ids, *(() if own_eos is None else (own_eos,)))
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(known_eos))
        """Tokens that end an answer: the model's, then the tokenizer's own."""
        specials = [t.content for t in self._tokenizer.added_tokens_decoder.values() if t.special]
        # Longest first, so that a token wins over the tokens it contains; an empty set matches
        # nowhere.
        longest_first = sorted(specials, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # What mark_control_tokens puts before a marked token; alone it only separates pieces.
        self._separator: str = mark_control_tokens("x", re.compile("x"))[0]
        # Encoding a marked chat switches the backend to plain text and back.
        self._lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the model can be given, added ones included."""
        return self._vocab_size

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be rendered."""
        return self._tokenizer.chat_template is not None

    def encode(self, text: str) -> list[int]:
        """Encode plain text as a prompt, with the opening tokens that the model expects.

        Raises:
            RequestError: The text has a token that the model does not know.
        """
        with self._lock:
            return self._known(self._backend.encode(text).ids, "prompt")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens, leaving special ones out."""
        return self._backend.decode(list(token_ids), skip_special_tokens=True)

    def detokenizer(self) -> "Detokenizer":
        """Return a decoder for one growing output."""
        return Detokenizer(self._backend)

    def token_text(self, token_id: int) -> str:
        """Return one token as text, special ones included; ``logprobs`` show this."""
        return self._backend.decode([token_id], skip_special_tokens=False)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> list[int]:
        """Render and encode a chat.

        Special tokens spelled out inside a message are encoded as ordinary text, so that nobody
        can end a turn or speak for another role from within a message.

        Raises:
            RequestError: There is no template, or it refuses these messages.
        """
        marked = self._mark(messages)
        text = self._render(
            marked,
            add_generation_prompt=add_generation_prompt,
            tools=None if tools is None else self._mark(tools),
        )
        return self._encode_marked(text)

    def encode_training(
        self, messages: Sequence[Message], learned: Collection[int] | None = None
    ) -> TrainingTokens:
        """Encode a chat for training; assistant turns are supervised to their end token.

        Before each supervised turn stand exactly the tokens that serving would send to have it
        generated. What follows the last supervised turn is dropped.

        Args:
            messages: The chat.
            learned: Indices of the assistant turns to supervise; ``None`` takes all.

        Raises:
            RequestError: No such turn, or one whose first characters the tokenizer joins with the
                prompt so that no single sequence serves all turns.
            ModelError: The template puts something else before an answer than it asks with, or
                does not end answers with an end-of-sequence token.
        """
        turns = [
            i
            for i, message in enumerate(messages)
            if message.get("role") == "assistant" and (learned is None or i in learned)
        ]
        if not turns:
            raise RequestError("need at least one assistant message", param="messages")
        marked = self._mark(messages[: turns[-1] + 1])
        text = self._render(marked, add_generation_prompt=False)
        prompts = [self._render(marked[:turn], add_generation_prompt=True) for turn in turns]
        if not all(text.startswith(prompt) for prompt in prompts):
            raise ModelError(
                "the chat template does not put its generation prompt before an answer"
            )
        token_ids, starts = self._encode_with_prompts(text, prompts)
        return self._supervise(token_ids, starts)

    def _encode_with_prompts(self, text: str, prompts: list[str]) -> tuple[list[int], list[int]]:
        """Encode ``text`` so that it begins with each encoded prompt; return where these end."""
        encoded = [self._encode_marked(prompt) for prompt in prompts]

        def keeps(token_ids: list[int], prompt_ids: list[int]) -> bool:
            return token_ids[: len(prompt_ids)] == prompt_ids

        token_ids = self._encode_marked(text)
        if not all(keeps(token_ids, prompt_ids) for prompt_ids in encoded):
            # An answer's first characters were joined with the prompt's last ones, which a model
            # that generates after the prompt cannot do: separate the last answer.
            end = len(prompts[-1])
            token_ids = self._encode_marked(text[:end] + self._separator + text[end:])
        if not all(keeps(token_ids, prompt_ids) for prompt_ids in encoded):
            raise RequestError(
                "an assistant message before the last one begins with characters that the "
                "tokenizer joins with the prompt; remove the white space it begins with",
                param="messages",
            )
        return token_ids, [len(prompt_ids) for prompt_ids in encoded]

    def _supervise(self, token_ids: list[int], starts: list[int]) -> TrainingTokens:
        is_supervised = [False] * len(token_ids)
        end = 0
        for start in starts:
            ends = (i for i in range(start, len(token_ids)) if token_ids[i] in self.eos_token_ids)
            eos = next(ends, None)
            if eos is None:
                raise ModelError("the chat template ends answers with no end-of-sequence token")
            end = eos + 1
            is_supervised[start:end] = [True] * (end - start)
        return TrainingTokens(tuple(token_ids[:end]), tuple(is_supervised[:end]))

    def _mark(self, values: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        return [mark_control_tokens(dict(value), self._specials) for value in values]

    def _render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        if not self.has_chat_template:
            raise RequestError("this model has no chat template", param="messages")
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return text

    def _encode_marked(self, text: str) -> list[int]:
        try:
            with self._lock:
                token_ids: list[int] = encode_marked_chat(self._tokenizer, text)
        except ValueError as error:
            raise RequestError(str(error), param="messages") from error
        return self._known(token_ids, "messages")

    def _known(self, token_ids: list[int], param: str) -> list[int]:
        if max(token_ids, default=0) >= self._vocab_size:
            unknown = self.token_text(max(token_ids))
            raise RequestError(
                f"the text contains {unknown!r}, which this model has no embedding for",
                param=param,
            )
        return token_ids


class Detokenizer:
    """Decodes one output token by token; a piece of text leaves once it is final.

    Args:
        backend: Decodes the tokens; special ones are left out.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._num_sent = 0

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now certain, empty while a character is open."""
        self._token_ids.append(token_id)
        text = self._stream.step(self._backend, token_id) or ""
        self._num_sent += len(text)
        return text

    def flush(self) -> str:
        """Return what is left when no more tokens come: characters that were never completed."""
        return self._backend.decode(self._token_ids, skip_special_tokens=True)[self._num_sent :]
