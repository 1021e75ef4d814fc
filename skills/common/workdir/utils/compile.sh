#!/bin/sh
# Compiles kernels/ the way the judge does: bash utils/compile.sh
exec python3 "$(dirname "$0")/compile.py"
