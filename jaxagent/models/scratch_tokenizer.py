"""The tokenizer of a small decoder that is trained from scratch: byte-level BPE whose words are whole lines.

A kernel's boilerplate then costs a token or two a line, so a context of some hundred tokens holds a whole dialogue,
and one token decides what a line does. Numbers of three digits and more, such as sizes and times, stay words of their
own, so that a line does not become another token with each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_MESSAGE = "<|im_end|>"
PADDING = "<|pad|>"
SPECIAL_TOKENS = (PADDING, "<|im_start|>", END_OF_MESSAGE)

_LINE_START = r"^( +|// |# )"
"""Indentation and comment marks: a line of code and its quotation in a comment are then the same token."""

_NUMBER = r"\d{3,}"


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, max_context: int = 4096) -> PreTrainedTokenizerFast:
    """A chatml tokenizer with at most `vocab_size` tokens; the same texts in the same order give the same tokens.

    Any text can be encoded: what the texts did not show falls apart into bytes.
    """
    smallest = 256 + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size={vocab_size} has no room for 256 bytes and {len(SPECIAL_TOKENS)} special tokens; "
                         f"set it to at least {smallest}")  # fmt: skip
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\n"), behavior="merged_with_previous"),
        pre_tokenizers.Split(Regex(_LINE_START), behavior="isolated"),
        pre_tokenizers.Split(Regex(_NUMBER), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_MESSAGE,
        pad_token=PADDING,
        model_max_length=max_context,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path | str) -> None:
    """Writes tokenizer.json and its settings, as transformers and vLLM load them from a model folder."""
    tokenizer.save_pretrained(str(folder))
