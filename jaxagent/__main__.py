"""`python -m jaxagent`: what a Ray job's entry point calls."""

import sys

from jaxagent.cli import main

sys.exit(main())
