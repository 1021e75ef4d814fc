"""Times ModelNew, Model in eager mode and Model under torch.compile; the work is done by the judge outside this workdir."""

import sys

from service import main

if __name__ == "__main__":
    sys.exit(main("profile"))
