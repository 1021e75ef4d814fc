"""What the documentation tells people to type exists and is understood; what it links to is there.

Commands are parsed by the programs' own parsers, and configs with their overrides are loaded: nothing is started.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jaxagent.cli.overrides import split_overrides
from jaxagent.cli.parser import build_parser
from jaxagent.config.load import load_config, override
from jaxagent.config.reference import render_reference
from jaxagent.synthesis.config import load_synthesis_config

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
PROGRAMS = ("make", "jaxagent", "python", "ray", "kubectl", "sbatch", "export", "bash", "source")
ENVIRONMENTS = (".venv", ".venv-gpu")


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, content) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Lines of blocks without a language, without trees, pictures and lines that describe usage ([…], …, A|B)."""
    lines = [line for language, content in blocks(page) if not language for line in content.splitlines()]
    starts = [re.sub(r"\s#.*", "", line) for line in lines if line.split(" ")[0] in PROGRAMS]
    return [line for line in starts if not re.search(r"[\[…|]", line)]


def all_commands() -> list[tuple[str, str]]:
    return [(page.relative_to(ROOT).as_posix(), line) for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), all_commands())
def test_a_command_in_the_documentation_is_understood(page: str, line: str):
    check(shlex.split(line))


def check(words: list[str]) -> None:
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in arguments if "=" not in word][0] in targets
    elif program == "jaxagent":
        check_jaxagent(arguments)
    elif program == "python":
        assert arguments[0] == "-m"
        if arguments[1] == "jaxagent":
            check_jaxagent(arguments[2:])
        else:
            assert importlib.util.find_spec(arguments[1]), arguments[1]
    elif program == "ray":
        check_ray(arguments)
    elif program == "kubectl":
        assert arguments[0] in ("apply", "logs")
        assert all((ROOT / word).is_file() for word in arguments if word.endswith(".yaml"))
    elif program == "sbatch":
        assert (ROOT / arguments[0]).is_file()
        check_jaxagent(["train", *arguments[1:]])
    elif program == "source":
        assert arguments[0] in [f"{name}/bin/activate" for name in ENVIRONMENTS]
    elif program == "export":
        assert re.fullmatch(r"\w+=\S+", arguments[0])
    else:
        assert (ROOT / arguments[0]).is_file(), words


def check_jaxagent(arguments: list[str]) -> None:
    """The command's own parser takes it, its configs exist, and its overrides are keys of the config."""
    own, overrides = split_overrides(arguments)
    parsed = build_parser().parse_args(own)
    configs = [parsed.config] if getattr(parsed, "config", None) else list(getattr(parsed, "configs", []))
    for config in configs:
        for path in sorted(ROOT.glob(str(config))) or [ROOT / config]:
            if parsed.command == "synthesize":
                load_synthesis_config(path)
            else:
                load_config(path, overrides)
    if not configs and overrides:
        override(load_config(ROOT / "configs/demo.yaml"), overrides, where="documentation")


def check_ray(arguments: list[str]) -> None:
    from ray.dashboard.modules.job.cli import job_cli_group
    from ray.scripts.scripts import cli

    group, name = (job_cli_group, arguments[1]) if arguments[0] == "job" else (cli, arguments[0])
    rest = arguments[2:] if arguments[0] == "job" else arguments[1:]
    options, _, entrypoint = (list(part) for part in _split(rest))
    context = group.commands[name].make_context(name, [*options, *(["--", *entrypoint] if entrypoint else [])])
    assert not context.args
    if entrypoint:
        check(entrypoint)


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place : place + 1], words[place + 1 :]


def test_the_pages_have_commands_and_none_is_of_an_unknown_program():
    found = [line for _, line in all_commands()]
    assert len(found) > 25
    for subcommand in ("train", "evaluate", "judge", "report", "watch", "ablate", "model"):
        assert any(line.startswith(f"jaxagent {subcommand}") for line in found), subcommand
    for page in PAGES:
        for language, content in blocks(page):
            first = content.lstrip().split("\n")[0].split(" ")[0]
            is_picture = "─►" in content
            looks_like_a_command = (
                not language and not is_picture and re.fullmatch(r"[a-z]+", first) and len(content.splitlines()) < 3
            )
            assert not looks_like_a_command or first in PROGRAMS, f"{page.name}: {content}"


def test_the_reference_of_the_configuration_is_what_the_classes_say():
    assert (ROOT / "docs/config.md").read_text() == render_reference(), (
        "run: python -m jaxagent.config.reference > docs/config.md"
    )


def test_examples_in_python_name_what_exists():
    for page in PAGES:
        for _, content in (block for block in blocks(page) if block[0] == "python"):
            for node in ast.walk(ast.parse(content)):
                if (
                    isinstance(node, ast.ImportFrom)
                    and node.module
                    and node.module.split(".")[0] in ("jaxagent", "rollout", "sandbox")
                ):
                    module = importlib.import_module(node.module)
                    assert all(hasattr(module, alias.name) for alias in node.names), f"{page.name}: {node.module}"


def test_examples_of_configs_are_configs(tmp_path: Path):
    found = 0
    for page in PAGES:
        for _, content in (block for block in blocks(page) if block[0] == "yaml"):
            path = tmp_path / f"{page.stem}-{found}.yaml"
            path.write_text(re.sub(r"(?m)^extends: ", f"extends: {ROOT}/configs/", content))
            load_config(path)
            found += 1
    assert found


def test_manifest_and_script_for_clusters_start_what_they_say():
    job = yaml.safe_load((ROOT / "docs/recipes/kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    check(shlex.split(job["spec"]["entrypoint"]))
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    from sandbox.actors.devices import PROFILER_RESOURCE

    profilers = next(group for group in groups if group.get("groupName") == "profiling")
    assert f'\\"{PROFILER_RESOURCE}\\": 1' in profilers["rayStartParams"]["resources"]
    script = ROOT / "docs/recipes/slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    lines = [line.strip().removesuffix("&") for line in script.read_text().replace("$head", "h").splitlines()]
    starts = [line[line.index("ray start") :] for line in lines if "ray start" in line]
    assert len(starts) == 2
    for start in starts:
        check([word.replace("$port", "6379").replace("$RAY_ADDRESS", "h:6379") for word in shlex.split(start)])


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_links_lead_somewhere(page: str):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://")):
            assert ((ROOT / page).parent / target).exists(), target


def test_the_reference_is_printed_by_its_command():
    done = subprocess.run([sys.executable, "-m", "jaxagent.config.reference"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout == render_reference()
