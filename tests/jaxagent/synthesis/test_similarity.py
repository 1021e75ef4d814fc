"""The paper's measure of similarity by hand, duplicates, and contamination."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from planted_tasks import task

from jaxagent.synthesis.contamination import KernelBench, KernelBenchError, called_operators, stated_shapes
from jaxagent.synthesis.duplicates import DuplicateIndex
from jaxagent.synthesis.normal_form import normalised
from jaxagent.synthesis.reasons import FilterConfig, Reason
from jaxagent.synthesis.similarity import Structure, similarity


def _score(first: str, second: str) -> float:
    return similarity(Structure(first, class_name=None), Structure(second, class_name=None))


def test_the_measure_equals_a_hand_computed_example():
    """`return x` is Return, Name, Load: 3 nodes. `def f(x): …` adds FunctionDef, arguments, arg: 6.

    First: FunctionDef of 6 (1.2), Return of 3 (1.0): 7.2 + 3 = 10.2.
    Second, `return x + 1`: Return, BinOp, Name, Load, Add, Constant are 6, FunctionDef 9: 10.8 + 6 = 16.8.
    FunctionDef on FunctionDef: itself, arguments, arg, and Return, whose only children differ in type: 4 nodes.
    Return on Return: 1 node. Score: 2 (4 * 1.2 + 1 * 1.0) / (10.2 + 16.8) = 11.6 / 27 = 0.4296.
    The other assignment, FunctionDef on Return, matches nothing.
    """
    assert _score("def f(x):\n    return x", "def f(x):\n    return x + 1") == 0.4296


def test_roots_of_other_weight_pair_with_the_mean_and_the_best_assignment_wins():
    """Two imports (Import, alias: 2 nodes at 0.3 each) against one: 2 * (2 * 0.3) / (1.2 + 0.6) = 0.6667."""
    assert _score("import a\nimport b", "import c") == 0.6667
    assert _score("import a", "import b") == 1.0
    assert _score("x = 1", "y = 2") == 0.0  # nothing that is weighed


def test_names_sizes_and_docstrings_do_not_count_but_structure_does():
    first = task("return torch.relu(self.fc(x))", init="self.fc = nn.Linear(8, 8)")
    renamed = first.replace("fc", "projection").replace("8", "4096").replace("relu", "tanh")
    assert similarity(Structure(first), Structure(renamed)) == 1.0
    described = first.replace("class Model(nn.Module):\n", 'class Model(nn.Module):\n    """A model."""\n')
    assert similarity(Structure(first), Structure(described)) == 1.0
    longer = task("y = self.fc(x)\nreturn torch.relu(y + x)", init="self.fc = nn.Linear(8, 8)")
    assert 0 < similarity(Structure(first), Structure(longer)) < 0.9


def test_annotations_and_the_form_of_super_do_not_hide_a_problem(tmp_path: Path):
    (tmp_path / "level1").mkdir()
    plain = task("return torch.tanh(x)")
    annotated = plain.replace("self, x)", "self, x: torch.Tensor) -> torch.Tensor").replace(
        "super()", "super(Model, self)"
    )
    assert similarity(Structure(plain), Structure(annotated)) < 0.9
    assert similarity(Structure(plain, bare=True), Structure(annotated, bare=True)) == 1.0
    (tmp_path / "level1" / "22_Tanh.py").write_text(annotated)
    finding = KernelBench(tmp_path).similar(plain, FilterConfig())
    assert finding is not None and "1.0000 to level1/22_Tanh" in finding.detail


def test_a_bound_saves_work_and_changes_no_score_above_it():
    first, second = task("return x"), task("\n".join(["x = x + 1"] * 40) + "\nreturn x")
    assert similarity(Structure(first), Structure(second), at_least=0.9) == 0.0
    assert similarity(Structure(first), Structure(first), at_least=0.9) == 1.0


def test_normal_form_forgets_names_comments_and_layout_and_keeps_what_is_called():
    code = task("y = torch.tanh(x)  # a comment\nreturn y")
    assert normalised(code) == normalised(code.replace("y", "other").replace("  # a comment", ""))
    assert normalised(code) != normalised(code.replace("tanh", "sinh"))
    assert normalised(code) != normalised(code.replace("1024", "512"))


def _evidence(operators: list[str], *shapes: tuple[int, ...]) -> dict[str, dict]:
    inputs = [{"dtype": "float32", "shape": list(shape), "stride": []} for shape in shapes]
    return {"build": {"inputs": inputs}, "examine": {"operators": operators}}


def test_near_duplicates_share_operators_and_sizes():
    code = task("return torch.tanh(self.fc(x))", init="self.fc = nn.Linear(1024, 512)")
    index = DuplicateIndex(FilterConfig())
    index.add("first", code, _evidence(["Linear", "tanh"], (1024, 1024)))
    resized, tall, other = (code.replace("randn(1024,", f"randn({size},") for size in ("1100", "8192", "1024"))
    near = index.near(resized, _evidence(["Linear", "tanh"], (1100, 1024)))
    assert near is not None and near.reason is Reason.DUPLICATE and "first" in near.detail
    assert index.near(tall, _evidence(["Linear", "tanh"], (8192, 1024))) is None
    assert index.near(other.replace("tanh", "sigmoid"), _evidence(["Linear", "sigmoid"], (1024, 1024))) is None
    assert index.exact(code.replace("self.fc", "self.layer")) is not None
    assert index.exact(resized) is None


def test_shapes_and_operators_are_read_off_the_text():
    code = task("return F.gelu(self.fc(x))", init="self.fc = nn.Linear(64, 32)", inputs="[torch.rand(BATCH, *SHAPE)]")
    code = code.replace("class Model", "BATCH = 4 * 2\nSHAPE = (16, 64)\n\n\nclass Model")
    assert called_operators(code) == ("linear", "gelu")
    assert stated_shapes(code) == ((8, 16, 64),)


def test_a_folder_without_problems_is_refused(tmp_path: Path):
    with pytest.raises(KernelBenchError, match="holds no level1"):
        KernelBench(tmp_path)


def test_the_same_operators_on_nearly_the_same_shapes_are_contamination(tmp_path: Path):
    (tmp_path / "level2").mkdir()
    problem = task("x = self.fc(x)\nx = F.gelu(x)\nreturn x", init="self.fc = nn.Linear(64, 32)")
    (tmp_path / "level2" / "7_Linear_GELU.py").write_text(problem)
    bench = KernelBench(tmp_path)
    close = task("return F.gelu(self.fc(x))", init="self.fc = nn.Linear(64, 32)", inputs="[torch.rand(900, 1024)]")
    finding = bench.similar(close, FilterConfig())
    assert finding is not None and "level2/7_Linear_GELU" in finding.detail
    assert bench.similar(close.replace("gelu", "silu"), FilterConfig()) is None


@pytest.fixture
def checkout() -> Path:
    folder = os.environ.get("KERNELBENCH")
    if folder is None:
        pytest.skip("KERNELBENCH names no checkout of KernelBench")
    return Path(folder)


def test_a_kernelbench_problem_is_known_under_another_name_and_size(checkout: Path):
    bench = KernelBench(checkout)
    assert len(bench.problems) >= 250
    [path] = checkout.rglob("level2/1_*.py")
    changed = re.sub(r"\b(\d{2,})\b", lambda found: str(2 * int(found[0])), path.read_text())
    changed = changed.replace("self.conv", "self.first").replace("self.bias", "self.shift")
    finding = bench.similar(changed, FilterConfig())
    assert finding is not None and finding.reason is Reason.KERNELBENCH_SIMILAR
    assert bench.neighbours(changed)[0][1] > 0.9
