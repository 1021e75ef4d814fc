"""How the command ends: its exit codes, which errors are whose, and what is said of them."""

from __future__ import annotations

from jaxagent.files.disk import disk_full
from jaxagent.run.time_limit import TimeUpError

DONE, BAD_USAGE, FAILED, TIME_UP = 0, 2, 3, 4
OUR_PACKAGES = ("jaxagent", "rollout", "sandbox")


def exit_code(error: Exception) -> int | None:
    """2 for what the user can correct, 3 for what failed around us; None is a bug and deserves its traceback.

    An exception class of our own carries a message for people: a ValueError among them is about input.
    """
    if isinstance(error, TimeUpError):
        return TIME_UP
    if type(error).__module__.partition(".")[0] in OUR_PACKAGES:
        return BAD_USAGE if isinstance(error, ValueError) else FAILED
    return FAILED if isinstance(error, OSError) else None


def explain(error: Exception) -> str:
    """The error's text; where it is the system's own about a full disk, with what to do."""
    is_ours = type(error).__module__.partition(".")[0] in OUR_PACKAGES
    if is_ours or disk_full(error) is None:
        return str(error)
    return f"{error}. Nothing half-written stays; free some space, then run the command again (a run: with --resume)"
