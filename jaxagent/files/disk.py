"""A full disk, told as such: what could not be written, that nothing half-written stays, and what to do."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TENSORSTORE_CODE = re.compile(r"os_error_code='(\d+)'")


def disk_full(error: BaseException) -> str | None:
    """The system's words where `error` comes from a full disk, an exceeded quota or file size limit; else None.

    Orbax reports the first as ValueError with the system's number in its text, shutil as a list of texts.
    """
    number = getattr(error, "errno", None)
    if number is None:
        found = _TENSORSTORE_CODE.search(str(error))
        words = [os.strerror(full) for full in FULL if os.strerror(full) in str(error)]
        return os.strerror(int(found[1])) if found and int(found[1]) in FULL else next(iter(words), None)
    return os.strerror(number) if number in FULL else None


def named(error: OSError, path: Path) -> OSError:
    """The same error with the file's name: errors of `write` have none."""
    return OSError(error.errno, error.strerror or str(error), str(path))
