"""The report in a real browser: drawn without a word or a request, filtered, opened, in both themes, fast."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from report_run import make_evaluation, make_run, make_trajectory

from jaxagent.report import write_report
from rollout.chat import ChatFormat
from rollout.config import StoreConfig
from rollout.store import TrajectoryStore
from sandbox.types import Outcome


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"), name="first").root


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
    assert plots == 17 and browser.value("document.querySelectorAll('.plot .main-svg .xtick').length") > 20
    assert browser.value("document.querySelectorAll('#charts .plot')[0].data[1].y") == [3, None, None, None, -1, 0]
    assert browser.problems == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "about", "data", "blob"}


def test_filters_and_search_leave_the_trajectories_that_match(browser: Browser, page: Path):
    browser.open(page)
    assert browser.value("document.querySelectorAll('#list .row').length") == 15
    assert browser.value("document.querySelector('#list .row-id').textContent") == "evaluation_agentic-1", "the newest"
    stages = browser.value("[...document.querySelector('select[name=stage]').options].map((option) => option.value)")
    assert stages == ["", "expert", "evaluation_expert", "agentic", "evaluation_agentic"]
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


def test_tokens_are_shaded_by_what_is_known_of_them(browser: Browser, page: Path):
    browser.open(page, address="#t=agentic-2")
    browser.wait_for("document.querySelectorAll('.turn').length === 3")
    browser.value("document.querySelectorAll('.shaded').forEach((fold) => { fold.open = true })")
    browser.wait_for("document.querySelectorAll('.tokens').length === 3")
    shade = (
        "(name) => [...document.querySelectorAll('.tokens')[2].querySelectorAll('.token')].at(-1).style.backgroundColor"
    )
    assert "--shade-unlikely" in browser.value(f"({shade})()")
    assert "ratio 1.5" in browser.value("[...document.querySelectorAll('.tokens .token')].at(-1).title")
    browser.value(
        "(s => { s.value = 'ratio'; s.dispatchEvent(new Event('change')) })([...document.querySelectorAll('.shade')].at(-1))"
    )
    assert "--shade-plus" in browser.value(f"({shade})()") and "75%" in browser.value(f"({shade})()")
    browser.open(page, address="#t=expert-1")
    browser.wait_for("document.querySelectorAll('.turn').length === 3")
    browser.value("document.querySelectorAll('.shaded').forEach((fold) => { fold.open = true })")
    assert browser.value("document.querySelectorAll('.shade')[0].options.length") == 1, (
        "ratios were recorded of one alone"
    )
    assert browser.problems == []


def test_an_evaluation_has_its_pictures_and_no_empty_curves(browser: Browser, tmp_path: Path):
    browser.open(write_report([make_evaluation(tmp_path, name="evaluated")]))
    browser.value("document.querySelector('#heldout-charts .plot').scrollIntoView()")
    browser.wait_for("document.querySelector('#heldout-charts .plot').dataset.drawn === 'yes'")
    assert browser.value("document.querySelector('#training-pictures').hidden") is True
    browser.value("document.querySelector('#list .row').click()")
    browser.wait_for("document.querySelectorAll('.turn').length === 3")
    assert browser.problems == []


def test_a_point_of_the_scatter_opens_its_trajectory(browser: Browser, page: Path):
    browser.open(page)
    browser.value("document.querySelectorAll('#heldout-charts .plot')[2].scrollIntoView()")
    browser.wait_for("document.querySelectorAll('#heldout-charts .plot')[2].dataset.drawn === 'yes'")
    browser.value(
        "document.querySelectorAll('#heldout-charts .plot')[2].emit('plotly_click', {points: [{customdata: 'evaluation_agentic-1'}]})"
    )
    browser.wait_for("document.querySelector('.detail h3')?.textContent === 'evaluation_agentic-1'")
    assert browser.problems == []


LOAD_LIMIT_S = 2.0


def test_ten_thousand_trajectories_are_listed_filtered_and_opened_in_time(browser: Browser, tmp_path: Path):
    folder = make_run(tmp_path, name="large")
    chat = ChatFormat.from_folder(folder.initial_model)
    with TrajectoryStore(folder.store, StoreConfig(fsync=False)) as store:
        for number in range(100, 10_085):
            store.append(
                make_trajectory(chat, "agentic", number, outcome=Outcome.CORRECT, reward=float(number % 3 + 1))
            )
    page = write_report([folder.root], out=tmp_path / "page.html")
    seconds = []
    for _ in range(3):  # other work on the machine may hold up one of them
        browser.open(page)
        seconds.append(browser.value("performance.now()") / 1000)
    assert min(seconds) < LOAD_LIMIT_S, seconds
    assert browser.value("document.querySelector('#found').textContent") == "10000 of 10000"
    assert browser.value("document.querySelectorAll('#list .row').length") == 100, "a page of the list at a time"
    started = time.monotonic()
    browser.value(
        "(s => { s.value = '3'; s.dispatchEvent(new Event('change')) })(document.querySelector('select[name=reward]'))"
    )
    browser.wait_for("document.querySelector('#found').textContent.startsWith('33')")
    browser.value("document.querySelector('#list .row').click()")
    browser.wait_for("document.querySelectorAll('.turn').length === 3")
    assert time.monotonic() - started < LOAD_LIMIT_S
    assert browser.problems == []


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
