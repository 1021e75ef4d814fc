"""Runs ModelNew under compute-sanitizer and prints the first faults; the judge does the work, outside this workdir."""

import sys

from service import main

if __name__ == "__main__":
    sys.exit(main("sanitize"))
