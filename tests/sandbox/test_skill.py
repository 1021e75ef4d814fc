from __future__ import annotations

import os
import re

import pytest

from sandbox.guard import check_source
from sandbox.skill import (
    EXTENSION_MODULES,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_KERNEL_FILES,
    SkillError,
    collect_candidate,
    lay_out,
    load_skill,
)
from sandbox.toolchains.cpp import CODE_FLAGS
from sandbox.toolchains.cuda import DEVICE_FLAGS
from sandbox.types import Candidate, Task

TASK = Task(task_id="t", code="class Model: ...\n")


@pytest.mark.parametrize("name", EXTENSION_MODULES)
def test_a_skill_has_a_guide_and_the_three_clients(name):
    skill = load_skill(name)
    assert skill.extension_module in skill.guide
    assert {"utils/compile.py", "utils/verification.py", "utils/profiling.py"} <= set(skill.template)


@pytest.mark.parametrize("name", ["cpp", "cpp_agent"])
def test_the_guide_states_the_flags_that_are_used(name):
    for flag in CODE_FLAGS:
        assert flag in load_skill(name).guide or flag == "-fPIC"


@pytest.mark.parametrize("name", ["cuda", "cuda_agent"])
def test_the_guide_states_nvccs_flags(name):
    guide = load_skill(name).guide
    assert all(flag in guide for flag in DEVICE_FLAGS) and "utils/sanitize.py" in guide
    assert "utils/sanitize.py" in load_skill(name).template and "utils/sanitize.py" not in load_skill("cpp").template


@pytest.mark.parametrize("name", EXTENSION_MODULES)
def test_the_guides_own_example_is_not_refused(name):
    assert check_source(load_skill(name), guide_example(name)) is None


def guide_example(name: str) -> Candidate:
    """The kernels and model_new.py that SKILL.md shows."""
    guide = load_skill(name).guide
    kernels = re.findall(r"```cpp\n// (kernels/\S+)\n(.*?)```", guide, re.DOTALL)
    (model,) = re.findall(r"```python\n# model_new.py\n(.*?)```", guide, re.DOTALL)
    return Candidate(files=dict(kernels) | {"model_new.py": model})


def test_an_unknown_skill_lists_the_known_ones():
    with pytest.raises(SkillError, match="cpp, cpp_agent"):
        load_skill("fortran")


def test_lay_out_twice_gives_back_the_fixed_files(tmp_path):
    skill = load_skill("cpp_agent")
    lay_out(skill, TASK, tmp_path)
    (tmp_path / "binding.cpp").chmod(0o644)
    (tmp_path / "binding.cpp").write_text("// mine now")
    lay_out(skill, TASK, tmp_path)
    assert (tmp_path / "binding.cpp").read_text() == skill.template["binding.cpp"]
    assert (tmp_path / "model.py").read_text() == TASK.code
    assert (tmp_path / "kernels").is_dir()
    assert collect_candidate(tmp_path).files == {}


def test_only_model_new_and_kernels_are_collected(tmp_path):
    lay_out(load_skill("cpp"), TASK, tmp_path)
    (tmp_path / "model_new.py").write_text("a")
    (tmp_path / "kernels/k.cpp").write_text("b")
    (tmp_path / "kernels/k.h").write_text("c")
    (tmp_path / "kernels/deeper").mkdir()
    (tmp_path / "kernels/deeper/d.cpp").write_text("d")
    (tmp_path / "kernels/notes.md").write_text("e")
    (tmp_path / "other.cpp").write_text("f")
    candidate = collect_candidate(tmp_path)
    assert candidate.files == {"model_new.py": "a", "kernels/k.cpp": "b", "kernels/k.h": "c"}
    assert set(candidate.omitted) == {"kernels/deeper", "kernels/notes.md"}


def test_links_fifos_binaries_and_large_files_count_as_absent_with_a_reason(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("host file")
    workdir = tmp_path / "workdir"
    (workdir / "kernels").mkdir(parents=True)
    (workdir / "model_new.py").symlink_to(secret)
    (workdir / "kernels/link.cpp").symlink_to(secret)
    os.mkfifo(workdir / "kernels/fifo.cpp")
    (workdir / "kernels/binary.cpp").write_bytes(b"a\0b")
    (workdir / "kernels/latin.cpp").write_bytes(b"\xe9")
    (workdir / "kernels/large.cpp").write_text("x" * (MAX_FILE_BYTES + 1))
    (workdir / "kernels/fits.cpp").write_text("x" * MAX_FILE_BYTES)
    candidate = collect_candidate(workdir)
    assert set(candidate.files) == {"kernels/fits.cpp"}
    assert {
        "model_new.py",
        "kernels/link.cpp",
        "kernels/fifo.cpp",
        "kernels/binary.cpp",
        "kernels/latin.cpp",
        "kernels/large.cpp",
    } == set(candidate.omitted)


def test_a_linked_kernels_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/k.cpp").write_text("x")
    (tmp_path / "workdir").mkdir()
    (tmp_path / "workdir/kernels").symlink_to(tmp_path / "elsewhere")
    candidate = collect_candidate(tmp_path / "workdir")
    assert candidate.files == {} and "kernels" in candidate.omitted


def test_the_number_of_kernel_files_is_bounded(tmp_path):
    (tmp_path / "kernels").mkdir()
    for index in range(MAX_KERNEL_FILES + 2):
        (tmp_path / f"kernels/k{index:03d}.cpp").write_text("x")
    candidate = collect_candidate(tmp_path)
    assert len(candidate.files) == MAX_KERNEL_FILES and len(candidate.omitted) == 2


def test_a_folder_of_too_many_entries_holds_no_kernels_and_says_so_once(tmp_path):
    (tmp_path / "kernels").mkdir()
    for index in range(MAX_ENTRIES + 1):
        (tmp_path / f"kernels/k{index:04d}.cpp").touch()
    candidate = collect_candidate(tmp_path)
    assert candidate.files == {} and candidate.omitted == {"kernels": f"holds more than {MAX_ENTRIES} entries"}
    (tmp_path / "kernels/k0000.cpp").unlink()
    assert len(collect_candidate(tmp_path).files) == MAX_KERNEL_FILES


def test_a_missing_workdir_is_an_empty_candidate(tmp_path):
    assert collect_candidate(tmp_path / "gone").files == {}
