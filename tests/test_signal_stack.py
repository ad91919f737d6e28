"""A signal during an update changes nothing: handlers have a stack of their own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a stack for signals is used on Linux only")

UPDATES = """
import signal, sys

import gymnasium as gym
import numpy as np

from rekindle import Transitions
from rekindle.agents import PPO
from rekindle.storage.codec import tree_digest

space = gym.spaces.Box(-1, 1, (4,), np.float32)
agent = PPO(space, gym.spaces.Discrete(2), seed=0, rollout_steps=8192, minibatch_size=1024, epochs=8)
rng, slots = np.random.default_rng(0), np.arange(64)
signals = 0

def count(*_):
    global signals
    signals += 1

signal.signal(signal.SIGALRM, count)
observations = rng.uniform(-1, 1, (64, 4)).astype(np.float32)
for _ in range(2):
    while not agent.updates_due():
        actions = agent.act(observations, "explore", slots)
        following = rng.uniform(-1, 1, (64, 4)).astype(np.float32)
        agent.observe(Transitions(observations, actions, rng.random(64), following, np.zeros(64, np.uint8)), slots)
        observations = following
    if len(sys.argv) > 1:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    agent.update(agent.updates_due())
    signal.setitimer(signal.ITIMER_REAL, 0)
print(signals > 0, tree_digest(agent.state()))
"""


def printed(*words: str) -> list[str]:
    """What a program prints: pytest has a stack for signals already, so it is a process of its own."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_handlers_have_a_stack_of_their_own_once_agents_are_imported() -> None:
    program = """
import rekindle.agents.dispatch
from rekindle.signal_stack import has_signal_stack
print(has_signal_stack())
"""
    assert printed("-c", program) == ["True"]


def test_handlers_have_a_stack_of_their_own_in_a_session_of_any_agent() -> None:
    program = """
import gymnasium as gym
from rekindle import TrainingSession
from rekindle.agents import Tabular
from rekindle.signal_stack import has_signal_stack
places = gym.spaces.Discrete(2)
before = has_signal_stack()
with TrainingSession(Tabular(places, places, seed=0)):
    print(before, has_signal_stack())
"""
    assert printed("-c", program) == ["False", "True"]


def test_hundreds_of_signals_during_updates_change_no_bit() -> None:
    alone, signalled = printed("-c", UPDATES), printed("-c", UPDATES, "signals")
    assert (alone[0], signalled[0]) == ("False", "True")
    assert signalled[1] == alone[1]
