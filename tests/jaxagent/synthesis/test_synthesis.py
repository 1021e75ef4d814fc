"""Generated tasks: what they promise about themselves, and that torch, NumPy and the kernels agree on every step."""

from __future__ import annotations

import ctypes
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxagent.synthesis.demo import MIN_SIGNAL, faulty_steps, synthetic_tasks
from jaxagent.synthesis.frames import CUDA, CUDA_COLS_MULTIPLE, Style, kernel_source, model_new_source
from jaxagent.synthesis.kernels import OPS, Program, Step, evaluate, model_source, parse_model
from jaxagent.synthesis.task_spaces import CPU_SPACE, GPU_SPACE, SPACES, TaskSpace
from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.types import Candidate

_STEPS = [Step(name, op.constants[0] if op.constants else None) for name, op in OPS.items()]
_FOR_CPU = [step for step in _STEPS if not OPS[step.op].only_cuda]
_BODY = [step for step in _FOR_CPU if not OPS[step.op].reduces]
_ENDS = [step for step in _STEPS if OPS[step.op].reduces]
# Five steps a program, every operator in one of them, every reduction at the end of one.
_PROGRAMS = [
    Program((*steps, *ends), rows=7, cols=50)
    for steps, ends in itertools.zip_longest(
        itertools.batched(_BODY, 5)
        if hasattr(itertools, "batched")
        else [_BODY[k : k + 5] for k in range(0, len(_BODY), 5)],
        [[end] for end in _ENDS],
        fillvalue=(),
    )
]


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others():
    assert synthetic_tasks(3) == synthetic_tasks(3)
    assert [task.code for task in synthetic_tasks(3)[0]] != [task.code for task in synthetic_tasks(4)[0]]


@pytest.mark.parametrize("seed, space", [(0, CPU_SPACE), (1, CPU_SPACE), (2, CPU_SPACE), (0, GPU_SPACE)])
def test_heldout_tasks_use_known_steps_in_unknown_compositions_and_shapes(seed: int, space: TaskSpace):
    train, heldout = ([parse_model(task.code) for task in tasks] for tasks in synthetic_tasks(seed, space=space))
    assert (len(train), len(heldout)) == ((24, 12) if space is CPU_SPACE else (200, 60))
    assert {step for program in heldout for step in program.steps} <= {
        step for program in train for step in program.steps
    }
    assert not {frozenset(program.steps) for program in train} & {frozenset(program.steps) for program in heldout}
    assert not {(p.rows, p.cols) for p in train} & {(p.rows, p.cols) for p in heldout}
    assert {p.rows for p in heldout} <= {p.rows for p in train}
    assert {p.cols for p in heldout} <= {p.cols for p in train}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_every_operator_is_trained_on_at_least_twice(space: TaskSpace):
    train, _ = synthetic_tasks(0, space=space)
    uses = [op for task in train for op in task.ops]
    assert min(uses.count(op.name) for op in space.ops) >= 2
    assert set(uses) == {op.name for op in space.ops}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_a_task_is_read_back_from_its_code_inside_a_prompt(space: TaskSpace):
    for task in synthetic_tasks(0, space=space)[0]:
        program = parse_model(f"Make this faster:\n```python\n{task.code}```\nThanks.")
        assert model_source(program) == task.code
        assert [step.op for step in program.steps] == task.ops


def test_foreign_code_is_refused_with_the_line_that_is_foreign():
    code = synthetic_tasks(0)[0][0].code.replace(
        "        return x\n", "        x = torch.fft.fft(x)\n        return x\n"
    )
    with pytest.raises(ValueError, match=r"x = torch\.fft\.fft\(x\)"):
        parse_model(code)
    with pytest.raises(ValueError, match="no synthetic model"):
        parse_model("class Model: ...")


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_no_step_of_a_task_is_idle_and_outputs_move_with_inputs(space: TaskSpace):
    """In units of the judge's tolerance, measured with torch itself on the task's own module."""
    for task in synthetic_tasks(0, space=space)[1]:
        program = parse_model(task.code)
        model, x = _torch_model(task.code), torch.randn(8, program.cols)
        expected = model(x).double()
        tolerance = 1e-4 * (expected.abs() + expected.square().mean().sqrt())
        assert ((model(torch.randn(8, program.cols)).double() - expected).abs() / tolerance).mean() > 0.5 * MIN_SIGNAL
        body = program.steps[:-1] if program.reduces else program.steps
        assert len(faulty_steps(program)["missing_step"]) == len(body)


def test_faults_change_the_output_of_the_module_that_torch_runs():
    rng = np.random.default_rng(0)
    for task in synthetic_tasks(0)[0][:6]:
        program = parse_model(task.code)
        x, weight = rng.standard_normal((8, program.cols)), rng.uniform(0.5, 1.5, program.cols)
        expected = evaluate(program.steps, x, weight)
        for fault in itertools.chain.from_iterable(faulty_steps(program).values()):
            assert np.abs(evaluate(fault, x, weight) - expected).max() > 1e-3 * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("step", _STEPS, ids=[step.op for step in _STEPS])
def test_numpy_agrees_with_torch_on_every_step(step: Step):
    program = Program((step,), rows=6, cols=40)
    model, x = _torch_model(model_source(program)).double(), torch.randn(6, 40, dtype=torch.float64)
    weight, bias = (
        getattr(model, name).detach().numpy() if program.has(name) else np.ones(40) for name in ("weight", "bias")
    )
    actual = evaluate(program.steps, x.numpy(), weight, bias)
    expected = model(x).detach().numpy().reshape(actual.shape)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("style", list(Style))
def test_kernels_of_every_style_compute_what_torch_computes(style: Style, compiler: CompileService, tmp_path: Path):
    for index, program in enumerate(_PROGRAMS):
        run = _load(program, kernel_source(program, style), compiler, tmp_path / f"{style}_{index}.so")
        model, x = _torch_model(model_source(program)), torch.randn(program.rows, program.cols)
        with torch.no_grad():
            expected = model(x)
        actual = torch.full_like(expected, torch.nan)
        tensors = [x, *([model.weight] if program.has("weight") else []), actual]
        run(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), program.rows, program.cols)
        tolerance = 1e-4 * (expected.abs() + expected.square().mean().sqrt())
        assert ((actual - expected).abs() <= tolerance).all(), program


def test_vector_styles_call_simd_maths_and_scalar_styles_do_not(compiler: CompileService, tmp_path: Path):
    program = Program((Step("tanh"), Step("softplus")), rows=4, cols=64)
    for style in Style:
        _load(program, kernel_source(program, style), compiler, tmp_path / f"{style}.so")
        symbols = (tmp_path / f"{style}.so").read_bytes()
        assert (b"_ZGV" in symbols) == style.is_vector
        assert (b"GOMP_parallel" in symbols) == style.is_parallel


def test_a_faulty_kernel_keeps_the_interface_of_its_task():
    program = Program((Step("tanh"), Step("weight")), rows=4, cols=64)
    assert "const float* w" in kernel_source(program, Style.SCALAR_SERIAL, (Step("tanh"),))
    assert "self.weight, y" in model_new_source(program)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> CompileService:
    return CompileService(CompileConfig(cache_dir=tmp_path_factory.mktemp("compile"), cuda_arch="sm_90"))


def _torch_model(code: str) -> Any:
    names: dict[str, Any] = {}
    exec(code, names)
    return names["Model"](*names["get_init_inputs"]())


def _load(program: Program, source: str, compiler: CompileService, path: Path) -> Any:
    files = {"kernels/kernel.cpp": source, "model_new.py": model_new_source(program)}
    result = compiler.compile("cpp", Candidate(files=files))
    assert result.artifact is not None, result.message
    names = [entry["name"] for entry in json.loads(result.artifact.interface)["functions"]]
    assert names == ["run"]
    path.write_bytes(result.artifact.shared_object)
    return ctypes.CDLL(str(path)).run


# Two programs with every operator there is: one keeps its rows, one ends in a reduction.
_CUDA_PROGRAMS = [
    Program(tuple(step for step in _STEPS if not OPS[step.op].reduces), rows=1536, cols=6144),
    Program((Step("residual"), Step("bias"), Step("weight"), Step("log_softmax"), Step("norm")), rows=2048, cols=4096),
]


@pytest.mark.nvcc
@pytest.mark.parametrize("style", CUDA.styles)
def test_cuda_kernels_of_every_style_compile_and_are_called_as_they_want(style, compiler: CompileService):
    for program in _CUDA_PROGRAMS:
        model_new = model_new_source(program, CUDA)
        files = {CUDA.kernel: kernel_source(program, style), "model_new.py": model_new}
        result = compiler.compile("cuda", Candidate(files=files))
        assert result.artifact is not None, result.message
        (function,) = json.loads(result.artifact.interface)["functions"]
        passed = model_new.split("cuda_kernels.run(")[1].split(")\n")[0].split(", ")
        assert function["name"] == "run" and len(passed) == len(program.parameters) + 3
        assert len(function["parameters"]) == len(passed) + 1, "and the stream, which Python does not pass"


def test_rows_of_cuda_tasks_are_whole_warps_of_eight_elements_a_thread():
    for cols in GPU_SPACE.cols:
        assert cols % CUDA_COLS_MULTIPLE == 0 and cols // 8 <= 1024
