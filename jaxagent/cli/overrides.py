"""Tells the flags of a command from overrides of its config."""

from __future__ import annotations

from collections.abc import Sequence

OWN_FLAGS = {
    "train": ("--resume", "--stop-after", "--help"),
    "evaluate": ("--policy", "--tasks", "--protocol", "--out", "--help"),
    "ablate": ("--after", "--help"),
    "plan": ("--devices", "--accelerator", "--memory-gib", "--efficiency", "--json", "--help"),
}
"""Commands that take overrides of the config, `--section.key value`, beside these flags."""


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that argparse reads, and the overrides: it would take an override's value for a positional."""
    command, *rest = arguments or [""]
    if command not in OWN_FLAGS:
        return list(arguments), []
    own, overrides = [command], []
    while rest:
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        if not flag.startswith("--") or flag in OWN_FLAGS[command]:
            own.append(word)
        else:
            overrides.append(word)
            overrides += [rest.pop(0)] if rest and not equals else []
    return own, overrides
