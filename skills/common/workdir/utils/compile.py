"""Compiles kernels/ the way the judge does and prints the first errors; the work is done by the judge outside this workdir."""

import sys

from service import main

if __name__ == "__main__":
    sys.exit(main("compile"))
