"""The `jaxagent` command. Every subcommand imports what it needs itself, so that each starts fast.

Exit codes: 0 done (a refused candidate is done), 2 bad usage or config, 3 our own failure, 4 time is up (--stop-after)
and the run can be resumed, 128 + N stopped by signal N.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from jaxagent.cli.exits import exit_code, explain
from jaxagent.cli.overrides import split_overrides
from jaxagent.cli.parser import build_parser
from jaxagent.commands.stopping import StoppedError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = build_parser()
    own, overrides = split_overrides(sys.argv[1:] if arguments is None else arguments)
    parsed = parser.parse_args(own)
    parsed.overrides = overrides
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return parsed.run(parsed)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except StoppedError as error:
        return error.exit_code
    except Exception as error:  # of our own classes or the system's; a bug keeps its traceback
        code = exit_code(error)
        if code is None:
            raise
        print(f"jaxagent {parsed.command}: {explain(error)}", file=sys.stderr)
        return code
