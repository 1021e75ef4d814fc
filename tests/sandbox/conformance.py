"""What every backend of sandbox.types.Sandbox has to do; test_backends.py runs it on each of them.

A check takes an open sandbox whose workdir held model.py, utils/helper.py and kernels/ when it was opened.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Callable

import pytest

from sandbox.backends import ShellSandbox


async def run(box: ShellSandbox, command: str, *, timeout_s: float = 30.0, session: str = "main") -> str:
    """Output of a command that has to succeed."""
    result = await box.exec(command, timeout_s=timeout_s, session=session)
    assert result.exit_code == 0, result
    return result.output


async def output_and_exit_code_are_those_of_the_command(box: ShellSandbox) -> None:
    result = await box.exec("echo out; echo err >&2; exit_code() { return 7; }; exit_code", timeout_s=30)
    assert (result.exit_code, result.output, result.truncated) == (7, "out\nerr\n", False)


async def directory_variables_and_functions_persist_within_a_session(box: ShellSandbox) -> None:
    await run(box, "cd kernels; color=red; export SHAPE=round; greet() { echo hi $1; }")
    assert await run(box, "echo $color $SHAPE $(basename $PWD); greet you") == "red round kernels\nhi you\n"
    assert await run(box, "echo [$color] $(basename $PWD)", session="other") == f"[] {os.path.basename(box.home)}\n"


async def exit_status_of_the_last_command_persists(box: ShellSandbox) -> None:
    await box.exec("(exit 9)", timeout_s=30)
    assert await run(box, "echo $?") == "9\n"


async def several_lines_quotes_and_here_documents_are_one_command(box: ShellSandbox) -> None:
    command = "cat <<'END'\na 'b' \"c\" $d \\e\nEND\nfor i in 1 2; do\n  echo \"$i\"\ndone"
    assert await run(box, command) == "a 'b' \"c\" $d \\e\n1\n2\n"


async def a_syntax_error_is_a_result_and_the_session_goes_on(box: ShellSandbox) -> None:
    await run(box, "kept=yes")
    result = await box.exec("if then", timeout_s=30)
    assert result.exit_code not in (0, None) and "syntax error" in result.output
    assert await run(box, "echo $kept") == "yes\n"


async def exit_ends_the_shell_with_its_code_and_the_next_command_gets_a_new_one(box: ShellSandbox) -> None:
    result = await box.exec("gone=1; echo bye; exit 5", timeout_s=30)
    assert result.exit_code == 5 and result.output.startswith("bye\n") and "shell ended" in result.output
    assert await run(box, "echo [$gone]") == "[]\n"


async def exec_replaces_the_shell_and_is_waited_for(box: ShellSandbox) -> None:
    result = await box.exec("exec bash -c 'sleep 0.3; echo last; exit 4'", timeout_s=30)
    assert result.exit_code == 4 and result.output.startswith("last\n")


async def a_redirection_of_the_whole_shell_does_not_silence_later_commands(box: ShellSandbox) -> None:
    await box.exec("exec >kernels/log 2>&1; echo hidden", timeout_s=30)
    assert await run(box, "cat kernels/log") == "hidden\n"


async def timeout_kills_the_command_with_its_children_and_keeps_the_directory(box: ShellSandbox) -> None:
    begun = time.monotonic()
    command = "cd kernels; echo before; (sleep 4321 & wait) | cat; touch too_late"
    result = await box.exec(command, timeout_s=1.0)
    assert result.exit_code is None and result.output.startswith("before\n") and "timed out after 1 s" in result.output
    assert time.monotonic() - begun < 5.0
    assert await run(box, "basename $PWD; ls; pgrep -f 'sleep 43[2]1' || echo none left") == "kernels\nnone left\n"


async def timeout_ends_a_loop_that_ignores_every_signal_it_can(box: ShellSandbox) -> None:
    result = await box.exec("trap '' INT TERM HUP; while true; do :; done", timeout_s=0.5)
    assert result.exit_code is None
    assert await run(box, "echo usable") == "usable\n"


async def timeout_leaves_background_processes_of_earlier_commands_alone(box: ShellSandbox) -> None:
    pid = (await run(box, "sleep 300 & echo $!")).strip()
    await asyncio.sleep(0.05)  # process start times have a resolution of 10 ms
    assert (await box.exec("sleep 100", timeout_s=0.5)).exit_code is None
    assert await run(box, f"kill -0 {pid} && echo alive") == "alive\n"


async def a_background_process_that_keeps_the_output_open_does_not_hang_the_command(box: ShellSandbox) -> None:
    begun = time.monotonic()
    assert "started" in await run(box, "(while sleep 0.2; do echo noise; done) & echo started")
    assert time.monotonic() - begun < 5.0
    await asyncio.sleep(0.5)
    assert "noise" in await run(box, "echo next")


async def a_background_process_never_blocks_on_its_output_between_commands(box: ShellSandbox) -> None:
    await run(box, "(head -c 1000000 /dev/zero | tr '\\0' x; touch kernels/written) &")
    for _ in range(100):
        if "written" in await run(box, "ls kernels", session="other"):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the background process is still blocked")


async def wait_knows_background_jobs_of_earlier_commands(box: ShellSandbox) -> None:
    await run(box, "(sleep 0.2; exit 6) &")
    assert await run(box, "wait $!; echo $?") == "6\n"


async def long_output_keeps_head_and_tail_and_says_what_is_left_out(box: ShellSandbox) -> None:
    result = await box.exec("seq 1 200000", timeout_s=60)
    assert result.truncated and result.exit_code == 0
    assert result.output.startswith("1\n2\n3\n") and result.output.endswith("199999\n200000\n")
    left_out = sum(len(str(number)) + 1 for number in range(1, 200_001)) - 30_000
    assert f"[... {left_out} bytes of output left out ...]" in result.output
    assert len(result.output) < 30_100


async def output_of_exactly_the_limit_is_whole(box: ShellSandbox) -> None:
    result = await box.exec("head -c 30000 /dev/zero | tr '\\0' y", timeout_s=30)
    assert result.output == "y" * 30_000 and not result.truncated


async def much_output_is_drained_quickly_and_in_bounded_memory(box: ShellSandbox) -> None:
    result = await box.exec("head -c 200000000 /dev/zero | tr '\\0' z", timeout_s=60)
    assert result.exit_code == 0 and result.truncated and len(result.output) < 30_100


async def characters_are_not_cut_in_two_by_truncation(box: ShellSandbox) -> None:
    result = await box.exec("for i in $(seq 5000); do printf 'aä€😀'; done", timeout_s=60)
    assert result.truncated and "\ufffd" not in result.output


async def binary_output_is_text_with_replacement_characters(box: ShellSandbox) -> None:
    assert await run(box, r"printf 'a\xff\xfe\x00b\xc3'") == "a\ufffd\ufffd\0b\ufffd"


async def output_that_imitates_an_end_of_command_ends_nothing(box: ShellSandbox) -> None:
    forged = "".join(rf"printf 'deadbeef 0\0' >&{fd} 2>/dev/null; " for fd in (3, 4, 5, 10, 11, 12, 13))
    result = await box.exec(f"({forged}) ; printf '\\0 0\\0'; sleep 0.5; echo really done; (exit 3)", timeout_s=30)
    assert result.exit_code == 3 and "really done\n" in result.output
    assert await run(box, "echo in step") == "in step\n"


async def the_shell_reads_nothing_of_ours_as_its_input(box: ShellSandbox) -> None:
    assert await run(box, "cat; read line || echo empty") == "empty\n"
    assert await run(box, "ls /proc/self/fd | tr '\\n' ' '") == "0 1 2 3 \n".replace("\n", "")  # 3 is ls's own


async def commands_do_not_inherit_ignored_signals(box: ShellSandbox) -> None:
    result = await box.exec("yes | head -1; echo ${PIPESTATUS[0]}; sh -c 'kill -TERM $$; echo survived'", timeout_s=30)
    assert "y\n141\n" in result.output and "survived" not in result.output


async def none_of_our_variables_reach_the_shell(box: ShellSandbox) -> None:
    assert "SECRET_OF_THE_TEST" in os.environ
    assert "SECRET_OF_THE_TEST" not in await run(box, "env; set")


async def python_and_the_compiler_work(box: ShellSandbox) -> None:
    await box.write_file("kernels/k.cpp", 'extern "C" int twice(int x) { return 2 * x; }\n')
    await run(box, "g++ -O2 -shared -fPIC -o $TMPDIR/k.so kernels/k.cpp")
    load = "import ctypes, os; print(ctypes.CDLL(os.environ['TMPDIR'] + '/k.so').twice(21))"
    assert await run(box, f'python3 -c "{load}"') == "42\n"


async def files_written_are_read_back_by_host_and_shell(box: ShellSandbox) -> None:
    await box.write_file("kernels/deep/er/a.cpp", "größe\n")
    assert await run(box, "cat kernels/deep/er/a.cpp; echo more >> kernels/deep/er/a.cpp") == "größe\n"
    assert await box.read_file("kernels/deep/er/a.cpp") == "größe\nmore\n"
    await box.write_file("kernels/deep/er/a.cpp", "x")
    assert await box.read_file(f"{box.home}/kernels/deep/er/a.cpp") == "x"
    assert (box.workdir / "kernels/deep/er/a.cpp").read_text() == "x"


async def a_missing_file_a_directory_and_a_strange_name_are_told_apart(box: ShellSandbox) -> None:
    with pytest.raises(FileNotFoundError):
        await box.read_file("kernels/none.cpp")
    with pytest.raises(FileNotFoundError):
        await box.read_file("no_directory/none.cpp")
    with pytest.raises(IsADirectoryError):
        await box.read_file("kernels")
    with pytest.raises(IsADirectoryError):
        await box.write_file("kernels", "x")
    with pytest.raises(NotADirectoryError):
        await box.read_file("model.py/x")
    with pytest.raises(FileNotFoundError):
        await box.write_file("", "x")


async def paths_that_leave_the_workdir_are_refused(box: ShellSandbox) -> None:
    for path in ("../secret", "/etc/passwd", "kernels/../../secret", "utils/../.././x"):
        with pytest.raises(PermissionError):
            await box.read_file(path)
        with pytest.raises(PermissionError):
            await box.write_file(path, "x")
    assert await box.read_file("kernels/../model.py") == "size = 4\n"


async def links_that_leave_the_workdir_are_refused_and_others_followed(box: ShellSandbox) -> None:
    await run(
        box,
        "(cd kernels; ln -s /etc/passwd abs; ln -s ../../x rel; ln -s / root; ln -s a.cpp ok; ln -s ok ok2; "
        "echo fine > a.cpp; ln -s loop loop; mkdir sub; ln -s ../kernels/sub dir)",
    )
    for path in ("kernels/abs", "kernels/rel", "kernels/root/etc/passwd"):
        with pytest.raises(PermissionError):
            await box.read_file(path)
        with pytest.raises(PermissionError):
            await box.write_file(path, "x")
    with pytest.raises(OSError, match="too many links"):
        await box.read_file("kernels/loop")
    assert await box.read_file("kernels/ok2") == "fine\n"
    await box.write_file("kernels/dir/b.cpp", "through a link\n")
    assert await run(box, "cat kernels/sub/b.cpp") == "through a link\n"


async def a_link_swapped_in_while_we_write_never_leads_outside(box: ShellSandbox) -> None:
    outside = box.workdir.parent / "outside"
    outside.mkdir(exist_ok=True)
    swap = f"cd kernels; while true; do rm -rf d; mkdir d; rm -rf d; ln -s {outside} d; done"
    swapping = asyncio.create_task(box.exec(swap, timeout_s=1.5, session="attacker"))
    written = refused = 0
    while not swapping.done():
        try:
            await box.write_file("kernels/d/x", "ours")
            written += 1
        except OSError:
            refused += 1
        await asyncio.sleep(0)
    assert refused and not list(outside.iterdir()), (written, refused)


async def devices_and_fifos_are_no_files_and_block_nobody(box: ShellSandbox) -> None:
    await run(box, "mkfifo kernels/pipe")
    for act in (box.read_file("kernels/pipe"), box.write_file("kernels/pipe", "x")):
        with pytest.raises(PermissionError):
            await asyncio.wait_for(act, 5)


async def files_of_the_skill_are_read_only(box: ShellSandbox) -> None:
    for path in ("model.py", "utils/helper.py", "utils/new.py", "kernels/../model.py"):
        with pytest.raises(PermissionError):
            await box.write_file(path, "x")
    assert await box.read_file("model.py") == "size = 4\n"
    await box.write_file("notes.md", "mine\n")
    assert await run(box, "cat notes.md") == "mine\n"


async def a_full_workdir_stops_the_command_and_can_be_emptied(box: ShellSandbox) -> None:
    fill = "i=0; while true; do i=$((i+1)); head -c 4000000 /dev/zero > kernels/fill$i; sleep 0.05; done"
    result = await box.exec(fill, timeout_s=30)
    assert result.exit_code == 137 and "the workdir may hold 32 MB" in result.output
    with pytest.raises(OSError, match="may hold"):
        await box.write_file("kernels/one_more", "x")
    await run(box, "rm kernels/fill*; sleep 1.2; echo x > kernels/small")
    await box.write_file("kernels/one_more", "x")


async def one_file_cannot_outgrow_the_limit(box: ShellSandbox) -> None:
    result = await box.exec("head -c 40000000 /dev/zero > kernels/large", timeout_s=30)
    assert result.exit_code != 0


async def sessions_run_in_parallel_and_one_session_in_turn(box: ShellSandbox) -> None:
    begun = time.monotonic()
    names = [f"s{i}" for i in range(6)]
    await asyncio.gather(*(run(box, "true", session=name) for name in names))
    begun = time.monotonic()
    outputs = await asyncio.gather(*(run(box, f"sleep 1; echo {name}", session=name) for name in names))
    assert outputs == [f"{name}\n" for name in names] and time.monotonic() - begun < 4.0
    outputs = await asyncio.gather(*(run(box, f"n=$((n + 1)); echo {i} $n") for i in range(10)))
    assert outputs == [f"{i} {i + 1}\n" for i in range(10)]


async def a_held_clock_does_not_run_out(box: ShellSandbox) -> None:
    command = asyncio.create_task(box.exec("sleep 1; echo done", timeout_s=0.7))
    await asyncio.sleep(0.2)
    with box.hold_clock():
        await asyncio.sleep(0.7)
    assert (await command).output == "done\n"


async def time_in_which_the_sandbox_was_frozen_does_not_count(box: ShellSandbox) -> None:
    command = asyncio.create_task(box.exec("sleep 1.2; echo done", timeout_s=1.0))
    await asyncio.sleep(0.3)
    pids = box.process_ids()
    for number, wait_s in ((signal.SIGSTOP, 1.5), (signal.SIGCONT, 0)):
        for pid in pids:
            os.kill(pid, number)
        await asyncio.sleep(wait_s)
    result = await command
    assert result.output == "done\n" and result.seconds < 1.0


async def cancelling_kills_the_command_and_leaves_the_session_usable(box: ShellSandbox) -> None:
    await run(box, "cd kernels")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(box.exec("sleep 4323; echo over > done", timeout_s=60), 0.3)
    assert await run(box, "basename $PWD; ls; pgrep -f 'sleep 43[2]3' || echo none left") == "kernels\nnone left\n"


async def too_long_a_command_is_a_result(box: ShellSandbox) -> None:
    assert (await box.exec("# " + "x" * (2 << 20), timeout_s=30)).exit_code == 126
    assert await run(box, "# " + "x" * 300_000 + "\necho long") == "long\n"


async def killing_everything_in_reach_is_survived(box: ShellSandbox) -> None:
    await box.exec("kill -9 $PPID 2>/dev/null; kill -9 $$", timeout_s=10)
    assert await run(box, "echo again") == "again\n"


async def close_ends_running_commands_and_can_be_repeated(box: ShellSandbox) -> None:
    running = asyncio.create_task(box.exec("sleep 100", timeout_s=200))
    await run(box, "setsid nohup sleep 4322 >/dev/null 2>&1 & disown", session="other")
    await asyncio.sleep(0.2)
    await asyncio.gather(box.close(), box.close())
    await box.close()
    with pytest.raises(Exception, match="the sandbox is closed"):
        await running
    with pytest.raises(Exception, match="the sandbox is closed"):
        await box.exec("true", timeout_s=1)
    with pytest.raises(Exception, match="the sandbox is closed"):
        await box.read_file("model.py")


CHECKS: list[Callable] = [
    check
    for name, check in list(globals().items())
    if inspect.isfunction(check)
    and inspect.iscoroutinefunction(check)
    and name != "run"
    and check.__module__ == __name__
]
