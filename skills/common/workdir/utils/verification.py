"""Checks ModelNew against Model on fresh random inputs; the work is done by the judge outside this workdir."""

import sys

from service import main

if __name__ == "__main__":
    sys.exit(main("verify"))
