"""The agents of the package in sessions with an input journal, for every form of loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.session.journal_hosts import FORMS, World, copied, digest, opened, tree_of
from tests.session.test_input_journal import abandoned

from rekindle.agent import State
from rekindle.agents import DQN, PPO, SAC, Tabular

CALLS = 40
STATES = 6
BOX, ONE = gym.spaces.Box(0, 1, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)
TWO = gym.spaces.Discrete(2)

AGENTS: dict[str, Callable[[], Any]] = {
    "tabular": lambda: Tabular(gym.spaces.Discrete(STATES), TWO, seed=0),
    "dqn": lambda: DQN(BOX, TWO, seed=0, hidden_sizes=(8,), batch_size=4, capacity=200, warmup_steps=8),
    "ppo": lambda: PPO(BOX, TWO, seed=0, hidden_sizes=(8,), rollout_steps=12, minibatch_size=6, epochs=2),
    "sac": lambda: SAC(
        BOX,
        gym.spaces.Box(-1, 1, (1,), np.float32),
        seed=0,
        hidden_sizes=(8,),
        batch_size=4,
        capacity=200,
        warmup_steps=8,
    ),
}
IN_CI = {
    ("tabular", "streams"),
    ("tabular", "background"),
    ("dqn", "background batches"),
    ("dqn", "manual"),
    ("ppo", "batches"),
    ("sac", "calls"),
}
COMBINATIONS = [
    pytest.param(agent, form, marks=() if (agent, form) in IN_CI else pytest.mark.exhaustive)
    for agent in AGENTS
    for form in FORMS
]


@functools.cache
def _made(name: str) -> tuple[Any, State]:
    agent = AGENTS[name]()
    return agent, agent.state()


def fresh(name: str) -> Any:
    """An agent as a new process would make it, without compiling it again."""
    agent, first = _made(name)
    agent.load_state(first)
    return agent


@pytest.mark.parametrize(("name", "form"), COMBINATIONS)
def test_an_agent_stands_after_a_resume_where_it_stood(name: str, form: str, tmp_path: Path) -> None:
    learner, host = FORMS[form]
    options: dict[str, Any] = {"learner": learner, "journal_keep": "all"}
    world = World(states=STATES if name == "tabular" else None)
    session = opened(tmp_path / "whole", fresh(name), **options)
    stood: list[tuple[Path, str]] = []
    for call, _ in enumerate(host(session, world, CALLS)):
        if call % 7 == 5:
            session.flush()
            stood.append((copied(tmp_path / "whole", tmp_path / f"after {call}"), digest(_whole(session))))
    abandoned(session)
    for root, expected in stood:
        again = opened(root, fresh(name), **options)
        assert again.resumed is not None
        assert again.resumed.grade == "exact"
        assert digest(_whole(again)) == expected
        abandoned(again)
    root, expected = stood[-1]
    run = next((root / "world" / "v1").iterdir())
    for checkpoint in run.glob("checkpoints/*"):
        checkpoint.unlink()
    from_the_beginning = opened(root, fresh(name), **options)
    assert from_the_beginning.total_steps
    assert digest(_whole(from_the_beginning)) == expected
    abandoned(from_the_beginning)


def _whole(session: Any) -> State:
    """The session, and the agent if no other thread is at work on it."""
    is_background = not hasattr(session._parts.learner, "is_manual")
    return {**tree_of(session), "agent": None if is_background else session.agent.state()}
