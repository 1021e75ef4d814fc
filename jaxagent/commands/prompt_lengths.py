"""What does not fit its dialogue is found before anything is rolled out.

Tasks whose prompt is too long are left out of training, and refused in evaluation; so is an expert whose answers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from jaxagent.config.load import ConfigError
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import PPOStage, SampleStage
from jaxagent.synthesis.expert import expert_answers
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.openings import openings_too_long
from sandbox.skill import load_skill
from sandbox.types import Task


def fitting_tasks(
    config: RunConfig, train: Sequence[Task], heldout: Sequence[Task], *, model_dir: Path, say: Callable[[str], None]
) -> list[Task]:
    """The train tasks that fit the dialogues of every stage; `say` names each that is left out.

    The same config and tokenizer leave out the same tasks, so tickets are numbered alike after a resume.
    Raises ConfigError where none is left, and for a held-out task: figures over fewer tasks would not be comparable.
    """
    chat, skill = ChatFormat.from_folder(model_dir), load_skill(config.tasks.skill)

    def too_long(key: str, dialogue: DialogueConfig, tasks: Sequence[Task]) -> dict[str, str]:
        found = openings_too_long(tasks, dialogue, skill=skill, chat=chat, sandbox_config=config.sandbox)
        limit = f"{key}.max_context_tokens={dialogue.max_context_tokens}"
        return {
            name: f"task {name}: its prompt has {tokens} tokens, and {limit} leaves no room for a reply"
            for name, tokens in found.items()
        }

    unfit = too_long("evaluation.dialogue", config.evaluation.dialogue, heldout)
    if unfit:
        raise ConfigError(
            f"{next(iter(unfit.values()))} ({len(unfit)} of {len(heldout)} held-out tasks); raise it, or take the "
            f"task out of tasks.heldout={config.tasks.heldout}"
        )
    for stage in config.stages:
        if isinstance(stage, SampleStage | PPOStage):
            unfit = too_long(f"stages.{stage.name}.dialogue", stage.dialogue, train) | unfit
    if unfit and len(unfit) == len(train):
        raise ConfigError(f"{next(iter(unfit.values()))}, and so it is with all {len(train)} train tasks; raise it")
    for problem in unfit.values():
        say(f"{problem}; it is left out of training ({len(unfit)} of {len(train)} tasks)")
    fitting = [task for task in train if task.task_id not in unfit]
    for stage in config.stages:
        if isinstance(stage, SampleStage) and stage.policy == "expert":
            _check_expert(config, stage, fitting, chat)
    return fitting


def _check_expert(config: RunConfig, stage: SampleStage, tasks: Sequence[Task], chat: ChatFormat) -> None:
    """Raises ConfigError where the limit cuts answers of the scripted expert: half a call teaches nothing."""
    longest, name = max(
        (len(chat.encode_reply(text)), task.task_id)
        for task in tasks
        for text in expert_answers(task, parser=stage.dialogue.parser, skill=config.tasks.skill)
    )
    if longest > stage.dialogue.max_reply_tokens:
        raise ConfigError(
            f"stages.{stage.name}.dialogue.max_reply_tokens={stage.dialogue.max_reply_tokens}: the scripted expert "
            f"answers task {name} with up to {longest} tokens of this model's tokenizer, and a reply that is cut has "
            f"no whole call in it; set it to {longest} or more, and max_context_tokens with it"
        )
