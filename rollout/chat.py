"""Chat formats as increments of token ids: what is appended to a conversation, never a re-rendering of it.

A chat template that is rendered anew each turn may rewrite history (drop thoughts, re-tokenise replies); the learner
would then see other tokens than were sampled. So the opening is rendered once, and after each reply only the tools'
results and the next reply's header are appended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class _Markup:
    """How one family writes a message: open + role + header_end + text + close. All but texts are token names."""

    bos: str | None
    open: str
    header_end: str | None
    header_text: str
    """Plain text between the header and the message."""
    close: str
    after_close: str
    """Plain text between two messages."""
    tool_role: str
    tool_wrapper: tuple[str, str]
    one_message_per_tool: bool


_MARKUPS = {
    # Qwen, SmolLM2 and the project's own small decoders: tool results are one user message.
    "chatml": _Markup(
        bos=None, open="<|im_start|>", header_end=None, header_text="\n", close="<|im_end|>", after_close="\n",
        tool_role="user", tool_wrapper=("<tool_response>\n", "\n</tool_response>"), one_message_per_tool=False,
    ),
    "llama3": _Markup(
        bos="<|begin_of_text|>", open="<|start_header_id|>", header_end="<|end_header_id|>", header_text="\n\n",
        close="<|eot_id|>", after_close="", tool_role="ipython", tool_wrapper=("", ""), one_message_per_tool=True,
    ),
}  # fmt: skip


class ChatFormat:
    """Renders one family's conversation increments with a fast Hugging Face tokenizer.

    Text that looks like a special token (a tool printing <|im_end|>) is encoded as the ordinary text it is: only the
    format itself writes special tokens, so no observation can end a message or speak for somebody else.
    """

    def __init__(self, tokenizer: Any, kind: str | None = None, *, stop_tokens: Sequence[str | int] = ()) -> None:
        """`tokenizer`: tokenizers.Tokenizer, or a fast transformers tokenizer. `kind`: chatml, llama3, or None to
        detect it from the vocabulary. `stop_tokens`: further tokens that end a reply, beside the format's own.
        """
        backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise TypeError(
                f"ChatFormat needs a fast tokenizer (tokenizer.json), got {type(tokenizer).__name__}; "
                "convert it once with AutoTokenizer.from_pretrained(..., use_fast=True).save_pretrained(...)"
            )
        # A private copy: the switch below would otherwise change the caller's tokenizer.
        self._tokenizer = Tokenizer.from_str(backend.to_str())
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.kind = kind or _detect(self._tokenizer)
        if self.kind not in _MARKUPS:
            raise ValueError(f"chat format {self.kind!r} is not known; allowed: {', '.join(_MARKUPS)}")
        self._markup = _MARKUPS[self.kind]
        self._close_id = self._special(self._markup.close)
        extra = [token if isinstance(token, int) else self._special(token) for token in stop_tokens]
        eos = getattr(tokenizer, "eos_token_id", None)
        stops = [self._close_id, *([] if eos is None else [eos]), *extra]
        self.stop_token_ids: list[int] = list(dict.fromkeys(stops))
        """Any of these ends a reply; the first is the one that the format itself writes."""

    @classmethod
    def from_folder(cls, folder: Path | str, kind: str | None = None) -> ChatFormat:
        """From a model folder's tokenizer.json; its end-of-sequence tokens end a reply too. Needs no transformers."""
        folder = Path(folder)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} is missing: a fast tokenizer is needed; save one there with "
                "transformers.AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)"
            )
        return cls(Tokenizer.from_file(str(file)), kind, stop_tokens=_folder_stop_tokens(folder))

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def start(self, system: str, user: str) -> np.ndarray:
        """[P] int32: system message (left out where empty), user message, header of the first reply."""
        bos = [self._special(self._markup.bos)] if self._markup.bos else []
        head = self._message("system", system) if system else []
        return _ids([*bos, *head, *self._message("user", user), *self._header("assistant")])

    def observations(self, texts: Sequence[str], *, closed: bool = True) -> np.ndarray:
        """[N] int32: the tools' results and the next reply's header, to be appended to a reply.

        `closed` False: the reply did not end with the format's own end token (it was cut off, or ended with another
        stop token), so the end token comes first.
        """
        markup = self._markup
        before, after = markup.tool_wrapper
        wrapped = [before + text + after for text in texts]
        contents = wrapped if markup.one_message_per_tool else ["\n".join(wrapped)]
        messages = [token for content in contents for token in self._message(markup.tool_role, content)]
        end = [] if closed else [self._close_id]
        return _ids([*end, *self.encode(markup.after_close), *messages, *self._header("assistant")])

    def is_closed(self, token_ids: Sequence[int] | np.ndarray) -> bool:
        """Whether a reply ended with the format's own end token."""
        return len(token_ids) > 0 and int(token_ids[-1]) == self._close_id

    def count_replies(self, prompt: np.ndarray) -> int:
        """Replies in `prompt` ([P] int32), which ends with the next one's header; a message of results follows each."""
        headers = int(np.count_nonzero(prompt == self._special(self._markup.open)))
        return (headers - 2) // 2  # system (or none), user, header; then a reply's results and a header each

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids if text else []

    def encode_reply(self, text: str) -> np.ndarray:
        """[T] int32: a whole reply as a policy would have sampled it, its end token included."""
        return _ids([*self.encode(text), self._close_id])

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of sampled tokens without the stop tokens at their end; other special tokens stay visible."""
        ids = [int(token) for token in token_ids]
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def decode_raw(self, token_ids: Iterable[int]) -> str:
        """Text of any token ids, special tokens included: for people to look at."""
        return self._tokenizer.decode([int(token) for token in token_ids], skip_special_tokens=False)

    def _message(self, role: str, content: str) -> list[int]:
        markup = self._markup
        if markup.header_end is None:
            # One piece of text between two special tokens, so that it splits as in the family's own template.
            body = [self._special(markup.open), *self.encode(role + markup.header_text + content)]
        else:
            body = [*self._header(role, ""), *self.encode(markup.header_text + content)]
        return [*body, self._close_id, *self.encode(markup.after_close)]

    def _header(self, role: str, text: str | None = None) -> list[int]:
        markup = self._markup
        text = markup.header_text if text is None else text
        if markup.header_end is None:
            return [self._special(markup.open), *self.encode(role + text)]
        return [self._special(markup.open), *self.encode(role), self._special(markup.header_end), *self.encode(text)]

    def _special(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(f"the tokenizer has no token {token!r}, which its chat format or stop tokens need")
        return token_id


def _detect(tokenizer: Tokenizer) -> str:
    for kind, markup in _MARKUPS.items():
        if tokenizer.token_to_id(markup.open) is not None and tokenizer.token_to_id(markup.close) is not None:
            return kind
    needed = "; ".join(f"{kind}: {markup.open} {markup.close}" for kind, markup in _MARKUPS.items())
    raise ValueError(f"the tokenizer has the special tokens of no known chat format ({needed})")


def _folder_stop_tokens(folder: Path) -> list[str | int]:
    stops: list[str | int] = []
    for name in ("tokenizer_config.json", "generation_config.json", "config.json"):
        file = folder / name
        if not file.is_file():
            continue
        record = json.loads(file.read_text(encoding="utf-8"))
        eos = record.get("eos_token_id" if name != "tokenizer_config.json" else "eos_token")
        eos = eos.get("content") if isinstance(eos, dict) else eos
        stops += eos if isinstance(eos, list) else [] if eos is None else [eos]
    return stops


def _ids(token_ids: Sequence[int]) -> np.ndarray:
    return np.asarray(token_ids, dtype=np.int32)
