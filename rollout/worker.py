"""RolloutWorker: one (task, sample) becomes one Trajectory; whatever fails on our side is raised, never scored."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rollout.agent_loop import run_dialogue
from rollout.clock import DialogueClock
from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.prompts import render_prompt
from rollout.tools import ToolBox, agent_tools, answer_tools
from rollout.types import Policy, StopReason, Trajectory, Turn
from rollout.workdirs import remove_abandoned, temporary_workdir
from sandbox.backends import open_sandbox
from sandbox.backends.files_only import FilesSandbox
from sandbox.config import SandboxConfig
from sandbox.quiet import QuietLease
from sandbox.service import WorkdirService
from sandbox.skill import Skill, collect_candidate, lay_out, load_skill
from sandbox.types import Candidate, CompileResult, Judge, Task


class RolloutWorker:
    """Conducts dialogues about tasks. One worker may run many at once: it keeps no state of any of them."""

    def __init__(
        self,
        policy: Policy,
        judge: Judge,
        sandbox_config: SandboxConfig,
        skill: str | Skill,
        *,
        compile: Callable[[str, Candidate], CompileResult] | None = None,
        quiet: QuietLease | None = None,
        scratch_dir: Path | None = None,
    ) -> None:
        """`compile`: answers an agent's `compile` (CompileService.compile); None judges it like `verify`.
        `quiet`: where a sandbox's processes are registered, while it is open, to stand still in timed sections.
        `scratch_dir`: where workdirs are made and removed again; None is the system's place for temporary files.
        """
        self._policy = policy
        self._judge = judge
        self._compile = compile
        self._quiet = quiet
        self._sandbox_config = sandbox_config
        self._skill = load_skill(skill) if isinstance(skill, str) else skill
        self._scratch_dir = scratch_dir
        remove_abandoned(scratch_dir)

    async def run(
        self,
        task: Task,
        *,
        stage: str,
        sample_index: int,
        seed: int,
        dialogue: DialogueConfig,
        trajectory_id: str | None = None,
    ) -> Trajectory:
        """One rollout, its final workspace judged and timed.

        A repeat after a failure should get the same `trajectory_id`, so that a store sees when one comes twice; None
        makes one of stage, task, sample and seed.

        Raises RolloutError, SandboxUnavailableError, DeviceError: repeat it, here or elsewhere. ValueError: the task
        or the settings cannot work (a prompt longer than the context, a broken template).
        """
        started = time.monotonic()
        identity = trajectory_id or f"{stage}/{task.task_id}/{sample_index}/{seed}"
        async with temporary_workdir(self._scratch_dir) as workdir:
            await asyncio.to_thread(lay_out, self._skill, task, workdir)
            conduct = self._answer if dialogue.kind == "single_turn" else self._work
            turns, stop_reason = await conduct(task, workdir, identity, seed, dialogue)
            # Service and sandbox are closed: nobody can change the files that are judged now.
            candidate = await asyncio.to_thread(collect_candidate, workdir)
            judgement = await self._judge.judge(task, candidate, skill=self._skill.name, timed=True)
        return Trajectory(
            trajectory_id=identity,
            task_id=task.task_id,
            sample_index=sample_index,
            stage=stage,
            seed=seed,
            turns=turns,
            judgement=judgement,
            stop_reason=stop_reason,
            seconds=time.monotonic() - started,
        )

    async def _answer(
        self, task: Task, workdir: Path, identity: str, seed: int, config: DialogueConfig
    ) -> tuple[list[Turn], StopReason]:
        """Single-turn: the writes of one reply, and nothing else, reach the workdir."""
        files = FilesSandbox(workdir)
        try:
            tools = answer_tools(files, max_chars=config.observation_chars)
            return await self._converse(task, tools, identity, seed, config, DialogueClock(config.max_seconds))
        finally:
            await files.close()

    async def _work(
        self, task: Task, workdir: Path, identity: str, seed: int, config: DialogueConfig
    ) -> tuple[list[Turn], StopReason]:
        """Agentic: a sandbox on the workdir, and the judge's service behind its socket."""
        clock = DialogueClock(config.max_seconds)
        async with contextlib.AsyncExitStack() as open_things:
            sandbox = await open_sandbox(self._sandbox_config, workdir)
            open_things.push_async_callback(sandbox.close)

            @contextlib.contextmanager
            def hold_clock():
                with clock.hold(), sandbox.hold_clock():
                    yield

            service = WorkdirService(
                self._judge, task, self._skill.name, sandbox.workdir, compile=self._compile, hold_clock=hold_clock
            )
            open_things.push_async_callback(service.close)
            await service.start()
            tools = agent_tools(
                sandbox,
                timeout_s=self._sandbox_config.command_timeout_s,
                max_chars=config.observation_chars,
                full=config.has_all_tools,
                home=sandbox.home,
                max_sandbox_s=config.max_sandbox_seconds,
                ask=service.answer,
                judgements=service.judgements,
                raise_failure=service.raise_failure,
            )
            with _frozen_while_timed(sandbox.process_ids(), self._quiet):
                return await self._converse(task, tools, identity, seed, config, clock)

    async def _converse(
        self, task: Task, tools: ToolBox, identity: str, seed: int, config: DialogueConfig, clock: DialogueClock
    ) -> tuple[list[Turn], StopReason]:
        parser = make_parser(config.parser)
        prompt = render_prompt(task, self._skill, dialogue=config, tools=tools.schemas, parser=parser)
        dialogue = self._policy.open(
            system=prompt.system,
            user=prompt.user,
            session_id=identity,
            seed=seed,
            max_context=config.max_context_tokens,
            max_reply=config.max_reply_tokens,
            temperature=config.temperature,
        )
        return await run_dialogue(dialogue, tools, parser, config, clock=clock)


@contextlib.contextmanager
def _frozen_while_timed(process_ids: list[int], quiet: QuietLease | None) -> Iterator[None]:
    if quiet is None:
        yield
        return
    try:
        for process_id in process_ids:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself, so it needs no freezing
                quiet.register(process_id)
        yield
    finally:
        for process_id in process_ids:
            quiet.unregister(process_id)
