#!/usr/bin/env bash
# The demo with what it needs: a Docker Engine for the agent's shell, started (or, as root on Debian, installed) here.
# Usage: scripts/demo.sh CONFIG [overrides]
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v dockerd >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "demo: no Docker Engine is installed; installing Debian's docker.io" >&2
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io >/dev/null
fi
if ! bash scripts/start_docker.sh; then
  echo "demo: or run it without isolation, as your own user, for a policy that you trust:" >&2
  echo "demo:   .venv/bin/jaxagent train $1 --sandbox.backend process" >&2
  exit 3
fi
exec .venv/bin/jaxagent train "$@"
