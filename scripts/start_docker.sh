#!/usr/bin/env bash
# Makes a Docker Engine answer: nothing to do where one does; otherwise starts an installed dockerd by hand.
# For machines that start no services themselves (containers, CI). Arguments are passed on to dockerd; the
# engine's address is DOCKER_HOST if that is set. Exit code 0: an engine answers; 1: why not, and what to do.
set -euo pipefail

log=${DOCKERD_LOG:-${TMPDIR:-/tmp}/dockerd-$(id -u).log}
wait_s=${DOCKERD_WAIT_S:-30}
address=${DOCKER_HOST:-unix:///var/run/docker.sock}

answers() { # asks the engine itself: the command `docker` is a package of its own on newer systems
    case $address in
    unix://*) python3 - "${address#unix://}" 2>/dev/null <<'END' ;;
import socket, sys
with socket.socket(socket.AF_UNIX) as engine:
    engine.settimeout(5)
    engine.connect(sys.argv[1])
    engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
    sys.exit(b"200 OK" not in engine.recv(4096))
END
    *) docker -H "$address" version >/dev/null 2>&1 ;;
    esac
}

start() { # starts dockerd with these arguments; 0 once it answers, 1 if it ends or stays silent
    nohup setsid dockerd -H "$address" "$@" >"$log" 2>&1 </dev/null &
    local pid=$!
    for ((i = 0; i < wait_s * 5; i++)); do
        answers && return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.2
    done
    kill "$pid"
    wait "$pid" 2>/dev/null || true
    return 1
}

if answers; then
    exit 0
fi
if ! command -v dockerd >/dev/null; then
    echo "No Docker Engine is installed: on Debian or Ubuntu, sudo apt-get install --no-install-recommends docker.io" >&2
    echo "(or see https://docs.docker.com/engine/install), then run this script again." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "No Docker Engine answers at $address for user $(id -un). Start it (sudo systemctl start docker, or" >&2
    echo "sudo $0), and check that this user is in the group docker." >&2
    exit 1
fi
# Sandboxes have no network, so an engine without one serves as well: some machines allow no bridge and no iptables.
if start "$@" || start --bridge=none --iptables=false "$@"; then
    echo "Docker Engine runs at $address; its log is $log" >&2
    exit 0
fi
echo "dockerd does not run on this machine; the end of its log ($log):" >&2
tail -n 5 "$log" >&2
exit 1
