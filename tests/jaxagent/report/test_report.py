"""The report of a run folder: what it reads, what it shows, and that no text of a model can act in it."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, Browser

from jaxagent.cli import main
from jaxagent.config.load import ConfigError
from jaxagent.config.run import RunConfig
from jaxagent.evaluation.evaluate import summarize
from jaxagent.files.write import write_json
from jaxagent.models.scratch_tokenizer import save_tokenizer, train_tokenizer
from jaxagent.report import trajectories as report_trajectories
from jaxagent.report import write_report
from jaxagent.report.charts import line, make_charts
from jaxagent.report.data import load_run
from jaxagent.report.file_history import FileHistory
from jaxagent.run.folder import RunFolder, create_run
from jaxagent.run.metrics_log import MetricsLog
from rollout.chat import ChatFormat
from rollout.store import TrajectoryStore
from rollout.tools.base import Files, ToolBox
from rollout.tools.files import Edit, MultiEdit, Read, Write
from rollout.types import StopReason, ToolCall, Trajectory, Turn
from sandbox.backends.files_only import FilesSandbox
from sandbox.types import Judgement, Outcome

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=2'>\u202e<!-- ]]> {{7*7}} \ud800"
KERNEL = 'extern "C" void run(const float* x, float* y, int n) {\n  for (int i = 0; i < n; i++)\n    y[i] = x[i];\n}\n'
TASK = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
def get_inputs():
    return [torch.randn(4)]
def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"), name="first").root


def make_run(runs_dir: Path, *, name: str) -> RunFolder:
    """The folder that a run of three stages leaves, written by the classes that write it in a run."""
    (runs_dir / "tasks").mkdir(exist_ok=True)
    (runs_dir / "tasks" / "double.py").write_text(TASK)
    config = RunConfig.model_validate({
        "name": name, "runs_dir": runs_dir, "model": {"kind": "scratch"}, "evaluation": {"after": ["expert"]},
        "tasks": {"train": str(runs_dir / "tasks"), "heldout": str(runs_dir / "tasks"), "skill": "cpp <b onclick=alert(1)>"},
        "stages": [
            {"name": "expert", "kind": "sample", "policy": "expert", "trajectories": 3},
            {"name": "tuned", "kind": "finetune", "data": ["expert"], "optimizer": {"learning_rate": 1e-3}},
            {"name": "agentic", "kind": "ppo", "updates": 2, "trajectories_per_update": 4},
        ],
    })  # fmt: skip
    folder = create_run(config)
    folder.initial_model.mkdir()
    save_tokenizer(train_tokenizer([TASK, KERNEL], vocab_size=300), folder.initial_model)
    chat = ChatFormat.from_folder(folder.initial_model)
    with TrajectoryStore(folder.store) as store:
        for number in range(3):
            store.append(make_trajectory(chat, "expert", number, outcome=Outcome.CORRECT, reward=3.0))
        for number in range(8):
            store.append(make_trajectory(chat, "agentic", number, outcome=Outcome.WRONG, reward=-1.0))
        store.append_manifest("agentic", 0, [f"agentic-{n}" for n in range(4)], 5)
        store.drop("agentic-7", "too old")
    write_metrics(folder)
    for label, reward in (("expert", -1.0), ("agentic", 2.0)):
        evaluated = [
            make_trajectory(chat, f"evaluation_{label}", n, outcome=Outcome.CORRECT, reward=reward) for n in range(2)
        ]
        with TrajectoryStore(folder.evaluations / label / "store") as store:
            for trajectory in evaluated:
                store.append(trajectory)
        write_json(folder.evaluations / label / "result.json", summarize(label, evaluated, seed=0).to_json())
    write_json(folder.summary, {"name": name, "seconds": 75.0})
    return folder


def write_metrics(folder: RunFolder) -> None:
    log = MetricsLog(folder)
    log.write(stage="expert", update=0, values={"mean_reward": 3.0, "outcome_correct": 1.0, "seconds": 10.0})
    log.write(stage="tuned", update=0, values={"entropy": 2.0, "nll": 3.0, "tokens_per_s": 50.0, "seconds": 4.0})
    for update in range(2):
        log.write(stage="agentic", update=update, values={
            "mean_reward": -1.0 + update, "outcome_wrong": 0.75, "outcome_correct": 0.25, "entropy": 1.5,
            "explained_variance": 0.1, "clipped_length_ratio": 0.5, "logprob_gap_mean": 1e-6, "logprob_gap_p50": 0.0,
            "logprob_gap_p99": 1e-5, "ratio_p1": 0.9, "ratio_p50": 1.0, "ratio_p99": 1.1, "staleness_0": 3.0,
            "staleness_2": 1.0, "staleness_10": 4.0, "staleness_mean": 0.5, "tokens_per_s": 100.0, "seconds": 9.0,
            "seconds_waiting": 2.0, "seconds_learning": 6.0,
        })  # fmt: skip
    log.close()


def make_trajectory(chat: ChatFormat, stage: str, number: int, *, outcome: Outcome, reward: float) -> Trajectory:
    """Two versions of a kernel, a malformed call, and in each text what would like to run as a script."""
    judgement = Judgement(
        outcome=outcome, reward=reward, message=f"judged {HOSTILE}", candidate_ms=1.0, eager_ms=2.0, compile_ms=1.5,
        details={"largest_error": math.inf, "words": HOSTILE},
    )  # fmt: skip
    texts = [
        (f"number {number} {HOSTILE}", [call("write", path="kernels/k.cpp", content=KERNEL)], ["created kernels/k.cpp"]),
        ("again", [call("edit", path="kernels/k.cpp", old="x[i];", new=f"2 * x[i]; // {HOSTILE}"),
                   call("bash", command=f"echo {HOSTILE}")], ["edited kernels/k.cpp", HOSTILE]),
        ("<tool_call> broken", [ToolCall(name=HOSTILE, arguments={HOSTILE: HOSTILE}, error=HOSTILE)], ["error: no"]),
    ]  # fmt: skip
    turns = []
    prompt = chat.start("system", TASK)
    for text, calls, observations in texts:
        token_ids = chat.encode_reply(text.encode("utf-8", "replace").decode())
        turns.append(Turn(
            prompt_token_ids=prompt, token_ids=token_ids, logprobs=np.full(len(token_ids), -0.5, np.float32),
            policy_versions=np.full(len(token_ids), 4, np.int32), text=text, tool_calls=calls,
            observations=observations, judgement=judgement,
        ))  # fmt: skip
        prompt = np.concatenate([prompt, token_ids])
    return Trajectory(
        trajectory_id=f"{stage}-{number}", task_id="double", sample_index=number, stage=stage, seed=0, turns=turns,
        judgement=judgement, stop_reason=StopReason.MAX_TURNS if number % 2 else StopReason.FINISHED, seconds=1.0,
    )  # fmt: skip


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


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


def test_only_the_newest_trajectories_are_packed_within_the_limits(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report_trajectories, "TRAJECTORIES_PER_STAGE", 3)
    pack = load_run(run_dir).trajectories
    assert [row["id"] for row in pack.index if row["stage"] == "agentic"] == ["agentic-7", "agentic-6", "agentic-5"]
    assert {count.stage: (count.shown, count.stored) for count in pack.counts}["agentic"] == (3, 8)
    monkeypatch.setattr(report_trajectories, "MAX_COMPRESSED_BYTES", 4)
    monkeypatch.setattr(report_trajectories, "_CHUNK_BYTES", 1)
    pack = load_run(run_dir).trajectories
    assert [count.shown for count in pack.counts] == [1, 1, 1, 1], "a stage always shows something"


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


# In a browser


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, Browser(Path(profile)) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([run_dir], out=tmp_path_factory.mktemp("page") / "page.html")


def test_a_browser_draws_the_curves_without_a_word_or_a_request(browser: Browser, page: Path):
    browser.open(page)
    plots = browser.value("document.querySelectorAll('.plot').length")
    for place in range(plots):
        browser.value(f"document.querySelectorAll('.plot')[{place}].scrollIntoView()")
        browser.wait_for(f"document.querySelectorAll('.plot')[{place}].dataset.drawn === 'yes'")
    assert plots == 11 and browser.value("document.querySelectorAll('.plot .main-svg .xtick').length") > 20
    assert browser.value("document.querySelectorAll('#charts .plot')[0].data[1].y") == [3, None, None, None, -1, 0]
    assert browser.problems == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "about", "data", "blob"}


def test_filters_and_search_leave_the_trajectories_that_match(browser: Browser, page: Path):
    browser.open(page)
    assert browser.value("document.querySelectorAll('#list .row').length") == 15
    choose = (
        "(s => {{ s.value = {1!r}; s.dispatchEvent(new Event('change')) }})(document.querySelector('select[name={0}]'))"
    )
    browser.value(choose.format("stage", "agentic"))
    browser.value(choose.format("stop", "max_turns"))
    browser.wait_for("document.querySelector('#found').textContent === '4 of 15'")
    browser.value(
        "(s => { s.value = 'NUMBER 5'; s.dispatchEvent(new Event('input')) })(document.querySelector('#search'))"
    )
    browser.wait_for("document.querySelector('#found').textContent === '1 of 15'")
    assert browser.value("document.querySelector('#list .row-id').textContent") == "agentic-5"
    browser.value("document.querySelector('#list .row').click()")
    browser.wait_for("document.querySelector('.detail h3')?.textContent === 'agentic-5'")


def test_a_trajectory_shows_its_turns_and_the_diff_of_its_kernel_and_runs_none_of_it(browser: Browser, page: Path):
    browser.open(page, address="#t=agentic-2")
    browser.wait_for("document.querySelectorAll('.turn').length === 3")
    browser.value("document.querySelectorAll('#detail details').forEach((fold) => { fold.open = true })")
    browser.wait_for("document.querySelectorAll('#detail pre').length > 15")
    added = browser.value("[...document.querySelectorAll('.diff .added')].map((line) => line.textContent)")
    assert len(added) == 1 and added[0].startswith("+    y[i] = 2 * x[i]; // </script><script>window.pwned=1")
    assert browser.value("document.querySelectorAll('.diff .removed').length") == 1
    assert browser.value("document.querySelector('.c-keyword').textContent") == "import"
    assert "number 2 </script><script>" in browser.value("document.querySelector('.turn .prose').textContent")
    assert browser.value("document.querySelectorAll('main img, main script, main iframe').length") == 0
    assert browser.value("typeof window.pwned") == "undefined" and browser.problems == []


def test_the_policy_stops_scripts_that_reach_the_document_all_the_same(browser: Browser, page: Path):
    browser.open(page)
    browser.value("document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.pwned=1'>`)")
    browser.value(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.pwned=2'}))"
    )
    browser.wait_for("true")
    assert browser.value("new Promise((done) => setTimeout(() => done(typeof window.pwned), 300))") == "undefined"
    assert any("Content Security Policy" in problem for problem in browser.problems)
    browser.problems.clear()


def test_the_chosen_run_is_shown_and_a_metric_lies_over_that_of_the_others(
    browser: Browser, run_dir: Path, tmp_path: Path
):
    second = make_run(tmp_path, name="second").root
    browser.open(write_report([run_dir, second], out=tmp_path / "page.html"))
    browser.value(
        "(s => { s.value = 'number 5'; s.dispatchEvent(new Event('input')) })(document.querySelector('#search'))"
    )
    browser.value(
        "(s => { s.value = '1'; s.dispatchEvent(new Event('change')) })(document.querySelector('#run-picker'))"
    )
    browser.wait_for("document.querySelector('#config .run').hidden")
    browser.value("document.querySelector('#metric-plot').scrollIntoView()")
    browser.wait_for("document.querySelector('#metric-plot').data?.length === 3")
    assert browser.value("document.querySelector('#metric-plot').data.slice(1).map((trace) => trace.name)") == [
        "first", "second"
    ]  # fmt: skip
    assert browser.value("document.querySelector('#found').textContent") == "15 of 15", (
        "the other run's search has ended"
    )
    assert browser.problems == []


@pytest.mark.parametrize("dark", [False, True])
def test_themes_follow_the_system_and_the_button_and_a_phone_needs_no_sideways_scrolling(
    browser: Browser, page: Path, dark: bool, tmp_path: Path
):
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    browser.open(page, address="#t=expert-1", width=390, height=844, dark=dark)
    browser.value("localStorage.removeItem('jaxagent-theme')")
    browser.wait_for("document.querySelectorAll('.turn').length === 3")
    assert (browser.value(brightness) < 200) == dark
    assert browser.value("document.documentElement.scrollWidth") <= 390
    assert browser.value("getComputedStyle(document.querySelector('.finder')).display") == "none"
    first = browser.screenshot(tmp_path / "first.png").read_bytes()
    browser.value("document.querySelector('#theme').click()")
    assert (browser.value(brightness) < 200) != dark
    assert browser.screenshot(tmp_path / "second.png").read_bytes() != first
    browser.value("document.querySelector('.back').click()")
    browser.wait_for("getComputedStyle(document.querySelector('.finder')).display !== 'none'")
    browser.value("localStorage.removeItem('jaxagent-theme')")
    assert browser.problems == []
