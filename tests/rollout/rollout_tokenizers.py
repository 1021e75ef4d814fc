"""Small real tokenizers, trained on the spot, with the special tokens of the chat formats."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
LLAMA3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

# Splits text as Llama 3 and Qwen 2 do: line breaks stand apart from the word that follows.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def _trained(specials: tuple[str, ...]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    sources = [path.read_text(encoding="utf-8") for path in sorted(Path("rollout").glob("*.py"))]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources, trainer)
    return tokenizer.to_str()


def small_tokenizer(specials: tuple[str, ...] = CHATML) -> Tokenizer:
    return Tokenizer.from_str(_trained(specials))
