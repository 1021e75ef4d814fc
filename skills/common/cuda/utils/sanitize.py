"""Runs ModelNew under NVIDIA's compute-sanitizer and prints the first faults; the work is done by the judge outside this workdir."""

import sys

from service import main

if __name__ == "__main__":
    sys.exit(main("sanitize"))
