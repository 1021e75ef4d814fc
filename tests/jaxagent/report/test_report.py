"""The report of a run folder: what it reads, what it shows, and that no text of a model can act in it."""

from __future__ import annotations

import gzip
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_run import HOSTILE, KERNEL, TASK, call, make_run

from jaxagent.cli import main
from jaxagent.config.load import ConfigError
from jaxagent.config.run import RunConfig
from jaxagent.report import trajectories as report_trajectories
from jaxagent.report import trajectory_json, write_report
from jaxagent.report.charts import line, make_charts
from jaxagent.report.comparison import comparison_charts, joint_axis
from jaxagent.report.data import load_run
from jaxagent.report.funnel import funnel_rows
from jaxagent.report.heldout import CURVE
from jaxagent.report.heldout_charts import heldout_charts
from jaxagent.run.folder import create_run
from rollout.file_history import FileHistory
from rollout.tools.base import Files, ToolBox
from rollout.tools.files import Edit, MultiEdit, Read, Write
from sandbox.backends.files_only import FilesSandbox


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"), name="first").root


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


# What is read


async def test_file_versions_are_the_texts_that_the_real_tools_leave_on_disk(tmp_path: Path):
    (tmp_path / "model_new.py").write_text("a = 1\nb = 1\n")
    workdir = FilesSandbox(tmp_path)
    files = Files(workdir, read_before_write=True)
    tools = ToolBox([Read(files), Write(files), Edit(files), MultiEdit(files)], max_chars=10_000)
    history = FileHistory()
    calls = [
        call("write", path="kernels/k.cpp", content="int a;\nint b;"),
        call("edit", path="./kernels/k.cpp", old="int b;", new="int c;\nint d;"),
        call("edit", path="kernels/k.cpp", old="not there", new="x"),
        call(
            "multi_edit", path="kernels/k.cpp", edits=[{"old": "int a", "new": "long a"}, {"old": "int d;", "new": ""}]
        ),
        call("edit", path="kernels/k.cpp", old="int", new="short", replace_all=True),
        call("write", path="model_new.py", content="overwritten unseen"),
        call("read", path="model_new.py"),
        call("edit", path="model_new.py", old="b = 1", new="b = 2"),
    ]
    changed = []
    for one in calls:
        version = history.follow(one, await tools.act(one))
        if version is not None:
            assert version.text == (tmp_path / version.path).read_text()
            changed.append((version.path, version.before))
    await workdir.close()
    assert [path for path, _ in changed] == ["kernels/k.cpp"] * 4 + ["model_new.py"]
    assert changed[0][1] is None and changed[-1][1] == "a = 1\nb = 1\n"


def test_opcodes_rebuild_the_new_version_from_the_old_one():
    history = FileHistory()
    history.follow(call("write", path="k.cpp", content=KERNEL), "created k.cpp")
    version = history.follow(call("write", path="k.cpp", content=KERNEL.replace("y[i] =", "y[i] = 2 *")), "wrote k.cpp")
    assert version is not None and version.before == KERNEL
    old, new = version.before.split("\n"), version.text.split("\n")
    rebuilt = [
        text for tag, i1, i2, j1, j2 in version.opcodes for text in (old[i1:i2] if tag == "equal" else new[j1:j2])
    ]
    assert rebuilt == new and any(tag != "equal" for tag, *_ in version.opcodes)


def test_a_file_made_to_be_slow_to_compare_is_shown_whole():
    history = FileHistory()
    history.follow(call("write", path="k.cpp", content="x;\n" * 5000), "created k.cpp")
    version = history.follow(call("write", path="k.cpp", content="x;\ny;\n" * 5000), "wrote k.cpp")
    assert version is not None and version.opcodes == []


def test_the_pack_holds_every_trajectory_with_prompt_task_and_update(run_dir: Path):
    pack = load_run(run_dir).trajectories
    assert [(count.stage, count.shown, count.stored) for count in pack.counts] == [
        ("expert", 3, 3), ("evaluation_expert", 2, 2), ("agentic", 8, 8), ("evaluation_agentic", 2, 2)
    ]  # fmt: skip
    rows = {row["id"]: row for row in pack.index}
    row = rows["agentic-1"]
    assert (row["update"], row["stop"], row["speedup"]) == ("agentic 0", "max_turns", 1.5)
    assert rows["agentic-7"]["dropped"] == "too old" and rows["agentic-7"]["update"] is None
    trajectory = json.loads(gzip.decompress(pack.chunks[row["chunk"]]))[row["place"]]
    assert trajectory["id"] == "agentic-1" and trajectory["turns"][0]["text"] == f"number 1 {HOSTILE}"
    assert trajectory["turns"][0]["versions"] == [4] and trajectory["turns"][0]["mean_logprob"] == -0.5
    assert [file["before"] is None for file in trajectory["files"]] == [True, False]
    assert TASK in pack.shared["prompts"][trajectory["prompt"]] and pack.shared["tasks"] == {"double": TASK}
    assert len(pack.shared["prompts"]) == 1, "equal prompts are kept once"


def test_an_infinite_error_does_not_break_the_json(run_dir: Path):
    chunk = gzip.decompress(load_run(run_dir).trajectories.chunks[0]).decode()
    assert "Infinity" not in chunk
    first = json.loads(chunk, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))[0]
    assert first["judgement"]["details"]["largest_error"] == "inf"


def test_all_trajectories_are_listed_and_the_texts_of_the_newest_are_packed_as_far_as_there_is_room(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    pack = load_run(run_dir).trajectories
    ran = [("expert", 3), ("evaluation_expert", 2), ("agentic", 8), ("evaluation_agentic", 2)]
    assert [row["id"] for row in pack.index] == [f"{stage}-{n}" for stage, num in ran for n in range(num)][::-1]
    assert all(count.shown == count.stored for count in pack.counts)
    monkeypatch.setattr(report_trajectories, "MAX_COMPRESSED_BYTES", 4)
    monkeypatch.setattr(report_trajectories, "_CHUNK_BYTES", 1)
    pack = load_run(run_dir).trajectories
    assert [(count.shown, count.stored) for count in pack.counts] == [(1, 3), (1, 2), (1, 8), (1, 2)]
    assert len(pack.index) == 15 and sum(row["chunk"] is not None for row in pack.index) == 4
    newest = next(row for row in pack.index if row["stage"] == "agentic")
    assert (
        newest["id"] == "agentic-7"
        and json.loads(gzip.decompress(pack.chunks[newest["chunk"]]))[0]["id"] == "agentic-7"
    )


def test_tokens_are_cut_into_turns_with_the_numbers_that_updates_recorded(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    def shaded_of(name: str) -> list[dict]:
        pack = load_run(run_dir).trajectories
        row = next(row for row in pack.index if row["id"] == name)
        turns = json.loads(gzip.decompress(pack.chunks[row["chunk"]]))[row["place"]]["turns"]
        return [turn.get("shaded") for turn in turns]

    turns = shaded_of("agentic-2")
    assert len(turns) == 3 and all(len(turn["texts"]) > 1 for turn in turns)
    assert all(len(column) == len(turn["texts"]) for turn in turns for column in turn.values())
    assert "".join(turns[1]["texts"]) == "again<|im_end|>" and set(turns[1]["logprob"]) == {-0.5}
    ratios = [ratio for turn in turns for ratio in turn["ratio"]]
    assert ratios[-1] == 1.5 and set(ratios[:-1]) == {1.0} and turns[0]["value"][0] is None
    monkeypatch.setattr(trajectory_json, "MAX_SHADED_TOKENS", len(turns[0]["texts"]) + 1)
    first, second, third = shaded_of("agentic-1")
    assert len(second["texts"]) == 1 and third is None and set(first) == {"texts", "logprob"}


# Curves


def test_curves_follow_the_records_and_stop_between_stages(run_dir: Path):
    run = load_run(run_dir)
    curve = line(run.records, "mean_reward", "batch")
    assert curve["x"] == [0, None, 1, None, 2, 3] and curve["y"] == [3.0, None, None, None, -1.0, 0.0]
    charts = {chart.title: chart for chart in make_charts(run)}
    held_out = charts["Mean reward"].traces[1]
    assert (held_out["x"], held_out["y"]) == ([0, 3], [-1.0, 2.0])
    assert [trace["name"] for trace in charts["Staleness"].traces] == ["0 behind", "2 behind", "10 behind"]
    assert sum(trace["y"][-1] for trace in charts["Outcomes"].traces) == 1.0
    assert [sum(bars) for bars in zip(*(trace["y"] for trace in charts["Seconds by phase"].traces), strict=True)] == [
        10.0, 4.0, 9.0, 9.0
    ]  # fmt: skip
    gaps = charts["Log-prob gap, trainer against engine"]
    assert [trace["name"] for trace in gaps.traces] == ["mean", "99 %"], "zeros have no place on a log axis"


def test_heldout_results_are_drawn_from_the_best_of_every_sample(run_dir: Path):
    run = load_run(run_dir)
    first, last = run.heldout
    assert (first.label, last.label) == ("expert", "agentic") and last.task_ids == ["double", "double"]
    curve = dict(zip(CURVE, last.fast_p_curve("compile"), strict=True))  # 1.5 times as fast as torch.compile
    assert (curve[0.0], curve[1.4], curve[1.5], curve[5.0]) == (1.0, 1.0, 0.0, 0.0)
    assert dict(zip(CURVE, last.fast_p_curve("eager"), strict=True))[1.9] == 1.0
    charts = {chart.title: chart for chart in heldout_charts(run.heldout, funnel_rows(run.trajectories.index))}
    assert [trace["name"] for trace in charts["fast_p over torch eager"].traces] == ["expert", "agentic"]
    points = charts["Speed-up of correct samples"].traces[1]
    assert (points["x"], points["y"]) == ([2.0, 2.0], [1.5, 1.5])
    assert points["customdata"] == ["evaluation_agentic-0", "evaluation_agentic-1"]


def test_the_funnel_counts_how_far_rollouts_came(run_dir: Path):
    rows = {row.stage: list(row.counts.values()) for row in funnel_rows(load_run(run_dir).trajectories.index)}
    assert list(rows) == ["expert", "evaluation_expert", "agentic", "evaluation_agentic"]
    assert rows["expert"] == [3, 0, 3, 3, 3, 3] and rows["agentic"] == [8, 4, 8, 0, 0, 0]
    assert rows["evaluation_agentic"] == [2, 0, 2, 2, 2, 0]


def test_curves_of_several_runs_begin_a_stage_in_the_same_place(run_dir: Path, tmp_path: Path):
    first, other = load_run(run_dir), load_run(make_run(tmp_path, name="second").root)
    del other.records[0]  # as a run that began from the first one's expert stage
    other.records[0]["step"], other.records[1]["step"], other.records[2]["step"] = 0, 1, 2
    charts = {chart.title: chart for chart in comparison_charts([first, other])}
    lines = charts["Mean reward"].traces
    assert [trace["name"] for trace in lines] == ["first", "second"]
    assert lines[0]["x"] == [0, None, 1, None, 2, 3] and lines[1]["x"] == [1, None, 2, 3]
    axis = joint_axis([first, other])
    assert axis["steps"] == [0, 1, 2, 3] and [band["stage"] for band in axis["bands"]] == ["expert", "tuned", "agentic"]
    assert [trace["name"] for trace in charts["fast_p over torch.compile"].traces] == ["first", "second"]


# The page


def test_no_text_of_a_model_is_markup_and_nothing_is_fetched(run_dir: Path, tmp_path: Path):
    page = write_report([run_dir], out=tmp_path / "page.html").read_text(encoding="ascii")
    tags = Tags(page).found
    kinds = [attributes.get("type", "script") for tag, attributes in tags if tag == "script"]
    assert kinds.count("script") == 1 and set(kinds) == {"script", "text/plain"}
    assert not [tag for tag, _ in tags if tag in ("img", "link", "iframe", "object", "embed", "base", "b")]
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")], f"{tag} has an event handler"
        assert all((attributes.get(name) or "#").startswith("#") for name in ("src", "href"))
    policy = next(a["content"] for t, a in tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy and "unsafe-inline" not in policy.split(";")[1]
    assert "pwned" not in page and "cpp &lt;b onclick=alert(1)&gt;" in page


def test_scripts_never_parse_a_text_as_markup_or_code():
    for path in (Path(report_trajectories.__file__).parent / "templates").glob("*.js"):
        text = path.read_text(encoding="ascii")
        forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "</script",
            "<!--",
        ]
        assert not [word for word in forbidden if word in text], path.name


def test_tables_state_before_and_after_with_intervals(run_dir: Path, tmp_path: Path):
    page = write_report([run_dir], out=tmp_path / "page.html").read_text()
    assert "<td>expert</td><td>-1.00 [-1.00, -1.00]</td>" in page
    assert "agentic over expert: <strong>3.00 [3.00, 3.00]</strong>" in page
    assert "<td>agentic</td><td>2</td><td>-1.00 &#8594; 0.00</td>" in page
    assert "1 min 15 s" in page and "trajectories_per_update: 4" in page


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path):
    config = RunConfig.model_validate({
        "name": "begun", "runs_dir": tmp_path, "model": {"kind": "scratch"},
        "tasks": {"train": str(tmp_path / "gone"), "heldout": str(tmp_path / "gone")},
        "stages": [{"name": "sampling", "kind": "sample", "trajectories": 1}],
    })  # fmt: skip
    path = write_report([create_run(config).root])
    page = path.read_text()
    assert path == tmp_path / "begun" / "report.html"
    assert "not finished" in page and "No update has finished yet" in page
    assert f"Not in this report: code of the tasks in {tmp_path / 'gone'}" in page


def test_several_runs_are_compared_in_one_page(run_dir: Path, tmp_path: Path):
    second = make_run(tmp_path, name="second").root
    page = write_report([run_dir, second], out=tmp_path / "page.html").read_text()
    assert "<td>second</td><td>agentic</td>" in page and 'id="run-1-data"' in page
    with pytest.raises(ConfigError, match="that is a folder"):
        write_report([run_dir], out=tmp_path)


def test_the_command_prints_the_path_and_says_what_is_no_run(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    assert main(["report", str(run_dir), "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'page.html'}\n"
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "no run here" in capsys.readouterr().err
