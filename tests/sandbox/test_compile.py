from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from sandbox.cache import ContentCache
from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.toolchains import cpp
from sandbox.toolchains import process as compiler_process
from sandbox.toolchains.process import run_limited
from sandbox.types import Candidate, SandboxUnavailableError

KERNEL = 'extern "C" void twice(const float* x, float* y, long n) { for (long i = 0; i < n; ++i) y[i] = 2 * x[i]; }\n'


def slow_kernel(functions: int) -> str:
    return KERNEL + "\n".join(
        f"double g{n}(double* a) {{ double s = {n}; for (int i = 0; i < 64; ++i) s += a[i] * i + a[2 * i]; return s; }}"
        for n in range(functions)
    )


def service(folder: Path, **changed) -> CompileService:
    return CompileService(CompileConfig(cache_dir=folder, **changed))


def kernels(**files: str) -> Candidate:
    return Candidate(files={f"kernels/{name}.cpp": text for name, text in files.items()})


def compilers_running(folder: Path) -> list[str]:
    """Command lines of the processes that work below `folder`, given a moment to die."""
    deadline = time.monotonic() + 3
    while (found := _processes_below(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _processes_below(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if str(folder) in os.readlink(entry):
                found.append((entry.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def test_the_second_compile_comes_from_the_cache_and_is_the_same(tmp_path):
    first = service(tmp_path).compile("cpp", kernels(k=KERNEL))
    second = service(tmp_path).compile("cpp", kernels(k=KERNEL))
    assert first.artifact is not None and first.artifact == second.artifact
    assert (first.cached, second.cached) == (False, True)
    assert first.artifact.shared_object[:4] == b"\x7fELF"


def test_model_new_is_no_part_of_the_key_and_each_kernel_file_is(tmp_path):
    compiles = service(tmp_path)
    compiles.compile("cpp", kernels(k=KERNEL))
    with_model = Candidate(files={"model_new.py": "x", "kernels/k.cpp": KERNEL})
    assert compiles.compile("cpp", with_model).cached
    assert not compiles.compile("cpp", Candidate(files={"kernels/other.cpp": KERNEL})).cached
    assert not compiles.compile("cpp", kernels(k=KERNEL + "//")).cached


def test_errors_name_file_and_line_and_are_remembered(tmp_path):
    broken = kernels(a=KERNEL, b='extern "C" void f(float* x) {\n  undeclared(x);\n}\n')
    result = service(tmp_path).compile("cpp", broken)
    assert result.artifact is None
    assert result.message.splitlines()[0] == "kernels/b.cpp:2:3: error: 'undeclared' was not declared in this scope"
    assert str(tmp_path) not in result.message
    again = service(tmp_path).compile("cpp", broken)
    assert again.cached and again.message == result.message


def test_only_the_first_errors_are_shown(tmp_path):
    lines = "\n".join(f"  missing{index}();" for index in range(50))
    result = service(tmp_path).compile("cpp", kernels(k=f'extern "C" void f() {{\n{lines}\n}}\n'))
    assert "missing0" in result.message and "missing40" not in result.message
    assert "more errors" in result.message and len(result.message) < 2500


def test_a_template_error_in_a_system_header_is_led_by_the_line_that_caused_it(tmp_path):
    source = '#include <vector>\n#include <algorithm>\nstruct S {};\nextern "C" void f() {\n  std::vector<S> v;\n  std::sort(v.begin(), v.end());\n}\n'
    message = service(tmp_path).compile("cpp", kernels(k=source)).message
    assert "kernels/k.cpp:6" in message.splitlines()[0]


def test_what_is_declared_and_not_defined_is_a_link_error(tmp_path):
    source = 'extern "C" void elsewhere(float*);\nextern "C" void f(float* x) { elsewhere(x); }\n'
    result = service(tmp_path).compile("cpp", kernels(k=source))
    assert result.artifact is None and "undefined reference to `elsewhere'" in result.message


def test_several_sources_and_headers_make_one_object(tmp_path):
    files = {
        "kernels/a.cpp": '#include "shared.h"\n' + KERNEL,
        "kernels/shared.h": "#pragma once\nint helper();\n",
        "kernels/b.cpp": '#include "shared.h"\nint helper() { return 1; }\nextern "C" int one() { return helper(); }\n',
    }
    result = service(tmp_path).compile("cpp", Candidate(files=files))
    assert result.artifact is not None, result.message
    assert '"twice"' in result.artifact.interface and '"one"' in result.artifact.interface


def test_kernels_without_c_linkage_say_how_to_write_one(tmp_path):
    result = service(tmp_path).compile("cpp", kernels(k="void f(float* x) { *x = 1; }"))
    assert result.artifact is None and 'extern "C" void name' in result.message
    assert "kernels/ holds no .cpp file" in service(tmp_path).compile("cpp", Candidate(files={})).message


def test_the_compiler_does_not_read_the_hosts_files_to_the_agent(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the host's secret\n")
    for source in (f'#include "{secret}"\n', f'__asm__(".include \\"{secret}\\"");\n'):
        result = service(tmp_path / "cache").compile("cpp", kernels(k=source + KERNEL))
        assert result.artifact is None and "host's secret" not in result.message and "refused" in result.message


def test_a_compile_that_takes_too_long_is_killed_with_its_children_and_not_remembered(tmp_path):
    compiles = service(tmp_path, timeout_s=0.5)
    started = time.monotonic()
    result = compiles.compile("cpp", kernels(k=slow_kernel(1500)))
    assert result.artifact is None and "took longer than 0.5 s" in result.message
    assert time.monotonic() - started < 5
    assert compilers_running(tmp_path) == []
    assert not compiles.compile("cpp", kernels(k=slow_kernel(1500))).cached
    assert list((tmp_path / "build").iterdir()) == []


def test_a_process_tree_dies_at_its_time_limit(tmp_path):
    ran = run_limited(["/bin/bash", "-c", "sleep 60 & sleep 60"], cwd=tmp_path, timeout_s=0.3)
    assert ran.exit_code is None
    assert compilers_running(tmp_path) == []


ENDLESS = """
template <int N, long M> struct Tree { enum { value = Tree<N - 1, 2 * M>::value + Tree<N - 1, 2 * M + 1>::value }; };
template <long M> struct Tree<0, M> { enum { value = 1 }; };
extern "C" void twice(long* y) { *y = Tree<60, 0>::value; }
"""
LAUGHS = "\n".join(
    ["#define L0 1,1,1,1,1,1,1,1,1,1,"]
    + [f"#define L{n} " + f"L{n - 1} " * 10 for n in range(1, 9)]
    + ["static const int laughs[] = { L8 };", 'extern "C" void twice(int* y) { *y = laughs[*y]; }']
)


def test_instantiations_without_end_are_stopped_at_the_time_limit(tmp_path):
    result = service(tmp_path, timeout_s=1.5).compile("cpp", kernels(a=ENDLESS, b=ENDLESS))
    assert result.artifact is None and "took longer than 1.5 s" in result.message
    assert compilers_running(tmp_path) == [] and list((tmp_path / "build").iterdir()) == []


def test_a_compiler_that_eats_memory_ends_at_its_limit_as_the_candidates_error(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_process, "_MEMORY_KIB", 512 << 10)
    compiles = service(tmp_path, timeout_s=60)
    result = compiles.compile("cpp", kernels(k=LAUGHS))
    assert result.artifact is None and "memory" in result.message and result.seconds < 30
    assert compiles.compile("cpp", kernels(k=KERNEL)).artifact is not None


def test_files_that_a_compile_writes_are_bounded_and_the_compiler_goes_first_where_memory_is_short(tmp_path):
    fill = ["/bin/bash", "-c", "cat /proc/self/oom_score_adj; head -c 20000000 /dev/zero > large"]
    ran = run_limited(fill, cwd=tmp_path, timeout_s=10, max_file_bytes=1 << 20)
    assert ran.exit_code != 0 and ran.output.startswith("1000\n")
    assert (tmp_path / "large").stat().st_size == 1 << 20


def test_a_missing_compiler_is_our_trouble(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    cpp.compiler_identity.cache_clear()
    with pytest.raises(SandboxUnavailableError, match="g\\+\\+ is not on PATH"):
        service(tmp_path / "cache").compile("cpp", kernels(k=KERNEL))


def test_an_unusable_cache_folder_is_our_trouble(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxUnavailableError, match="cache_dir"):
        service(tmp_path / "file" / "cache")


def test_a_disk_that_fills_up_is_our_trouble_and_leaves_no_half_entry(tmp_path, monkeypatch):
    compiles = service(tmp_path)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", no_space)
        with pytest.raises(SandboxUnavailableError, match="no space left"):
            compiles.compile("cpp", kernels(k=KERNEL))
    assert list((tmp_path / "build").iterdir()) == []
    assert not compiles.compile("cpp", kernels(k=KERNEL)).cached


def test_a_damaged_entry_is_compiled_again(tmp_path):
    first = service(tmp_path).compile("cpp", kernels(k=KERNEL))
    (entry,) = (tmp_path / "objects").glob("*/*")
    entry.write_bytes(entry.read_bytes()[:-100])
    second = service(tmp_path).compile("cpp", kernels(k=KERNEL))
    assert not second.cached and second.artifact == first.artifact


def _compile_in_process(folder: str, source: str, results) -> None:
    result = service(Path(folder)).compile("cpp", kernels(k=source))
    results.put((result.cached, result.artifact.sha256 if result.artifact else None))


def test_processes_that_ask_for_the_same_sources_share_one_compile(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_compile_in_process, args=(str(tmp_path), KERNEL, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert len({digest for _, digest in found}) == 1 and None not in {digest for _, digest in found}
    assert len(list((tmp_path / "objects").glob("*/*"))) == 1
    assert list((tmp_path / "build").iterdir()) == []


def test_threads_that_ask_for_the_same_sources_agree(tmp_path):
    compiles = service(tmp_path, num_workers=4)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(compiles.compile("cpp", kernels(k=KERNEL)))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.artifact.sha256 for result in results}) == 1


def test_a_builder_killed_in_the_middle_blocks_nobody(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_compile_in_process, args=(str(tmp_path), slow_kernel(100), results))
    process.start()
    deadline = time.monotonic() + 60
    while not list((tmp_path / "build").glob("*/kernels")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert list((tmp_path / "build").iterdir()), "the process died before it could build"
    result = service(tmp_path).compile("cpp", kernels(k=slow_kernel(100)))
    assert result.artifact is not None and not result.cached


def test_the_least_recently_used_entries_go_first(tmp_path):
    cache = ContentCache(tmp_path, max_bytes=10_000)
    keys = [f"{index:02x}" + "0" * 62 for index in range(20)]
    for index, key in enumerate(keys):
        cache.store(key, {}, bytes(1000))
        os.utime(tmp_path / "objects" / key[:2] / key, (index, index))
        if index == 5:
            os.utime(tmp_path / "objects/00" / keys[0], (1000, 1000))
    kept = [key for key in keys if cache.load(key) is not None]
    assert sum(path.stat().st_size for path in (tmp_path / "objects").glob("*/*")) <= 10_000
    assert keys[0] in kept and keys[1] not in kept and keys[-1] in kept


def test_builds_nobody_finished_are_swept(tmp_path):
    cache = ContentCache(tmp_path, max_bytes=10_000)
    old = tmp_path / "build/tmpdead"
    old.mkdir()
    os.utime(old, (0, 0))
    with cache.build_folder() as mine:
        cache.store("ab" + "0" * 62, {}, b"x")
        assert mine.exists()
    assert not old.exists()
