"""Files that are replaced as a whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from jaxagent.files.disk import named


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` as a whole: a reader, or a crash, sees the old text or the new one."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise named(error, path) from error
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1) + "\n")
