"""The command line that starts a sandbox: limits, namespaces, what is mounted, and the way to lose root's rights."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sandbox.backends import shell_server
from sandbox.backends.cgroup import Cgroup
from sandbox.backends.rootfs import AGENT_UID, accounts, host_paths, top_links
from sandbox.backends.shell import HOME
from sandbox.config import SandboxConfig

# "$@" up to "--" are files that a process enters a control group by
_ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 97; shift; done; shift; exec "$@"'
_RIGHTS_TO_DROP_RIGHTS = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")


def command_line(
    config: SandboxConfig, program: str, workdir: Path, group: Cgroup | None, fds: dict[str, int]
) -> list[str]:
    """`fds`: what bwrap and the server take by number, by what it is."""
    entrances = [str(path) for path in group.entrances] if group else []
    disk = config.disk_mb << 20
    limits = [f"--fsize={disk}", "--core=0", "--nofile=1024"]
    if group is None:
        limits += [f"--as={config.memory_mb << 20}", f"--nproc={config.pids}"]
    return [
        *("/bin/sh", "-c", _ENTER, "sh", *entrances, "--"),
        *("prlimit", *limits, "--", program),
        *_namespaces(),
        *_mounts(config, workdir, fds),
        *("--info-fd", str(fds["said"]), "--as-pid-1", "--new-session"),
        *(("--seccomp", str(fds["seccomp"])) if "seccomp" in fds else ()),
        "--",
        *_dropping_rights(),
        *shell_server.start_command(os.path.realpath(sys.executable)),
        *(f"fd:{fds['server']}", HOME),
    ]


def _namespaces() -> list[str]:
    shared = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid() != 0:
        return ["--unshare-user", *shared]
    kept = [argument for right in _RIGHTS_TO_DROP_RIGHTS for argument in ("--cap-add", right)]
    return [*shared, "--cap-drop", "ALL", *kept]


def _dropping_rights() -> list[str]:
    """As root, to become the agent; bwrap itself has dropped an ordinary user's rights."""
    if os.getuid() != 0:
        return []
    who = [f"--reuid={AGENT_UID}", f"--regid={AGENT_UID}", "--clear-groups"]
    return ["setpriv", *who, "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]


def _mounts(config: SandboxConfig, workdir: Path, fds: dict[str, int]) -> list[str]:
    disk, shared = config.disk_mb << 20, min(64, config.disk_mb) << 20
    arguments = []
    for name, target in top_links().items():
        arguments += ["--symlink", target, f"/{name}"]
    for path in host_paths():
        for parent in reversed(Path(path).parents[:-1]):  # bwrap would make some of them for the owner alone
            arguments += ["--perms", "0755", "--dir", str(parent)]
        arguments += ["--ro-bind", path, path]
    for name in accounts():
        arguments += ["--perms", "0644", "--ro-bind-data", str(fds[name]), f"/{name}"]
    return [
        *arguments,
        *("--ro-bind", str(shell_server.SOURCE), shell_server.MOUNT),
        *("--proc", "/proc"),
        *("--dev", "/dev"),
        *("--perms", "1777", "--size", str(shared), "--tmpfs", "/dev/shm"),
        *("--perms", "1777", "--size", str(disk), "--tmpfs", "/tmp"),
        *("--perms", "0755", "--dir", str(Path(HOME).parent), "--bind", str(workdir), HOME),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", "/"),
    ]
