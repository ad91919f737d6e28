"""Who learns, and when: at once on the host's thread, or in order on a thread that owns the agent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from toys import PolicyAgent, ToyAgent, line

from rekindle.agent import Metrics
from rekindle.errors import AgentError, ConfigError
from rekindle.experience import ActMode, Array, Transitions
from rekindle.session import background as learner_module
from rekindle.session.background import BackgroundLearner
from rekindle.session.learner import DirectLearner, Learner

SLOT = np.array([0])


def batch(*rewards: float) -> Transitions:
    count = len(rewards)
    return Transitions(
        np.zeros((count, 1), np.float32),
        np.zeros(count, np.int64),
        np.array(rewards, np.float64),
        np.ones((count, 1), np.float32),
        np.zeros(count, np.uint8),
    )


def background(agent: Any, **options: Any) -> BackgroundLearner:
    return BackgroundLearner(agent, np.random.default_rng(0), **options)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def noticed(learner: BackgroundLearner) -> BackgroundLearner:
    """The learner, as a call of the host sees it that begins now."""
    learner.look()
    return learner


# On the host's thread


def test_an_inline_learner_makes_the_updates_that_are_due() -> None:
    agent = ToyAgent(steps_per_update=2)
    learner = DirectLearner(agent, is_manual=False)
    learner.observe(batch(1.0, 1.0, 1.0, 1.0, 1.0), SLOT)
    ((count, metrics),) = learner.learned()
    assert (count, learner.updates, list(metrics)) == (2, 2, ["loss"])
    assert list(learner.learned()) == []


def test_a_manual_learner_learns_only_when_told_to() -> None:
    learner = DirectLearner(ToyAgent(), is_manual=True)
    learner.observe(batch(1.0, 1.0, 1.0), SLOT)
    assert list(learner.learned()) == []
    assert [count for count, _ in learner.learn(None)] == [3]
    assert learner.updates == 3


def test_with_a_budget_updates_are_made_one_by_one() -> None:
    learner = DirectLearner(ToyAgent(), is_manual=True)
    learner.observe(batch(1.0, 1.0, 1.0), SLOT)
    assert [count for count, _ in learner.learn(1e6)] == [1, 1, 1]


def test_without_time_no_update_is_made() -> None:
    learner = DirectLearner(ToyAgent(), is_manual=True)
    learner.observe(batch(1.0), SLOT)
    assert list(learner.learn(0.0)) == []


def test_a_direct_call_is_made_at_once() -> None:
    calls: list[int] = []
    learner = DirectLearner(ToyAgent(), is_manual=False)
    wait = learner.read(lambda: calls.append(1) or "result")
    assert calls == [1]
    assert wait() == "result"


def test_abilities_are_used_where_the_agent_has_them() -> None:
    agent = PolicyAgent()
    learner = DirectLearner(agent, is_manual=False)
    learner.cut([0, 2])
    learner.start_episode()
    assert (agent.cuts, agent.starts, learner.episode_extras()) == ([[0, 2]], 1, {"starts": 1.0})


def test_abilities_that_the_agent_has_not_are_not_missed() -> None:
    learner = DirectLearner(ToyAgent(), is_manual=False)
    learner.cut([0])
    learner.start_episode()
    learner.close()
    assert learner.episode_extras() == {}


# On a thread of its own


def test_an_agent_without_a_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs an agent with policy\(\), which ToyAgent lacks"):
        background(ToyAgent())


def test_everything_is_met_in_the_order_sent() -> None:
    agent = PolicyAgent()
    learner = background(agent)
    for number in range(500):
        learner.observe(batch(float(number)), SLOT)
    learner.close()
    assert agent.seen == [float(number) for number in range(500)]


def test_the_host_may_reuse_its_arrays() -> None:
    gate, agent = threading.Event(), PolicyAgent()
    learner = background(agent)
    learner.read(gate.wait)
    transitions = batch(1.0)
    learner.observe(transitions, SLOT)
    transitions.rewards[0] = 99.0
    gate.set()
    learner.close()
    assert agent.seen == [1.0]


def test_a_call_sees_everything_sent_before_and_nothing_sent_after() -> None:
    agent = PolicyAgent()
    learner = background(agent)
    cuts: list[Callable[[], tuple[int, int]]] = []
    for _ in range(50):
        learner.observe(batch(1.0, 1.0), SLOT)
        cuts.append(learner.read(lambda: (agent.env_steps, len(agent.seen))))
    learner.close()
    assert [cut() for cut in cuts] == [(2 * number, 2 * number) for number in range(1, 51)]


def test_the_agent_is_touched_on_one_thread_alone() -> None:
    threads: set[str] = set()

    class Noting(PolicyAgent):
        def observe(self, transitions: Transitions, streams: Array) -> None:
            threads.add(threading.current_thread().name)
            super().observe(transitions, streams)

        def update(self, n: int) -> Metrics:
            threads.add(threading.current_thread().name)
            return super().update(n)

        def cut(self, streams: Array) -> None:
            threads.add(threading.current_thread().name)
            super().cut(streams)

        def on_episode_start(self) -> None:
            threads.add(threading.current_thread().name)
            super().on_episode_start()

    learner = background(Noting())
    learner.observe(batch(1.0), SLOT)
    learner.cut([0])
    learner.start_episode()
    learner.close()
    assert threads == {"rekindle-learner"}


def test_what_was_learned_is_told_once() -> None:
    agent = PolicyAgent()
    learner = background(agent)
    learner.observe(batch(1.0, 1.0, 1.0), SLOT)
    assert eventually(lambda: noticed(learner).updates == 3)
    learner.close()
    assert sum(count for count, _ in learner.learned()) == 3
    assert list(learner.learned()) == []


def test_the_host_acts_with_the_newest_policy_and_its_own_random_numbers() -> None:
    agent = PolicyAgent()
    learner = BackgroundLearner(agent, np.random.default_rng(5))
    observations = line(1.0)[None]
    explored = [int(learner.act(observations, ActMode.EXPLORE, SLOT)[0]) for _ in range(50)]
    expected = np.random.default_rng(5).random(50) < 0.5
    assert explored == expected.tolist()
    for _ in range(20):
        learner.observe(batch(1000.0), SLOT)
    assert eventually(lambda: int(learner.act(observations, ActMode.EXPLOIT, SLOT)[0]) == 1)
    learner.close()


def test_the_agent_is_told_which_policy_chose() -> None:
    told: list[tuple[list[int], list[int]]] = []

    class Versioned(PolicyAgent):
        policy_version = 0

        def chose(self, streams: Array, versions: Array) -> None:
            told.append((streams.tolist(), versions.tolist()))

        def update(self, n: int) -> Metrics:
            self.policy_version += 1
            return super().update(n)

    agent = Versioned()
    learner = background(agent)
    observations = np.zeros((2, 1), np.float32)
    learner.act(observations, ActMode.EXPLORE, np.array([0, 1]))
    learner.observe(batch(1.0), np.array([1]))
    assert eventually(lambda: noticed(learner).updates == 1)
    learner.act(observations, ActMode.EXPLOIT, np.array([0, 1]))
    learner.act(observations[:1], ActMode.EXPLORE, np.array([2]))
    learner.observe(batch(1.0, 1.0, 1.0), np.array([0, 2, 3]))
    learner.close()
    assert told == [([1], [0]), ([0, 2, 3], [0, 1, 1])]


def test_a_policy_that_comes_without_an_update_is_acted_with_too() -> None:
    class Versioned(PolicyAgent):
        policy_version = 0

        def chose(self, streams: Array, versions: Array) -> None:
            chosen.extend(versions.tolist())

        def observe(self, transitions: Transitions, streams: Array) -> None:
            super().observe(transitions, streams)
            self.policy_version = 7

        def updates_due(self) -> int:
            return 0

    chosen: list[int] = []
    learner = background(Versioned())
    learner.observe(batch(1.0), SLOT)
    assert eventually(lambda: noticed(learner).seen.version == 7)
    noticed(learner).act(np.zeros((1, 1), np.float32), ActMode.EXPLORE, SLOT)
    learner.observe(batch(1.0), SLOT)
    learner.close()
    assert chosen == [0, 7]


def test_updates_that_an_agent_did_not_make_are_not_counted() -> None:
    class Lazy(ToyAgent):
        def update(self, n: int) -> Metrics:
            return super().update(min(n, 2))

    learner = DirectLearner(Lazy(), is_manual=False)
    learner.observe(batch(1.0, 1.0, 1.0), SLOT)
    assert [made for made, _ in learner.learned()] == [2]


def test_numbers_on_episodes_are_those_last_published() -> None:
    agent = PolicyAgent()
    learner = background(agent)
    assert learner.episode_extras() == {"starts": 0.0}
    learner.start_episode()
    learner.observe(batch(1.0), SLOT)
    assert eventually(lambda: noticed(learner).episode_extras() == {"starts": 1.0})
    learner.close()


def test_updates_are_made_between_messages_of_a_busy_host() -> None:
    learner = background(PolicyAgent(), capacity=4)
    for _ in range(200):
        learner.observe(batch(1.0), SLOT)
    assert noticed(learner).updates > 0
    learner.close()


def test_updates_beyond_the_backlog_are_skipped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "_BACKLOG", 10)
    agent = PolicyAgent()
    learner = background(agent)
    learner.observe(batch(*[1.0] * 100), SLOT)
    assert eventually(lambda: noticed(learner).updates + learner.skipped == 100)
    learner.close()
    assert (learner.skipped, agent.skipped, agent.updates) == (90, 90, 10)


def test_an_agent_that_cannot_skip_makes_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "_BACKLOG", 10)

    class Thorough(ToyAgent):
        def policy(self) -> Any:
            return PolicyAgent().policy()

    agent = Thorough()
    learner = background(agent)
    learner.observe(batch(*[1.0] * 100), SLOT)
    assert eventually(lambda: noticed(learner).updates == 100)
    learner.close()
    assert learner.skipped == 0


def test_a_full_queue_blocks_the_host_and_is_counted() -> None:
    gate, agent = threading.Event(), PolicyAgent()
    learner = background(agent, capacity=2)
    learner.read(gate.wait)
    threading.Timer(0.05, gate.set).start()
    for number in range(10):
        learner.observe(batch(float(number)), SLOT)
    learner.close()
    assert learner.blocked >= 1
    assert len(agent.seen) == 10


def test_a_queue_with_room_is_not_counted() -> None:
    learner = background(PolicyAgent())
    for _ in range(100):
        learner.observe(batch(1.0), SLOT)
    learner.close()
    assert learner.blocked == 0


# When the agent fails


class Failing(PolicyAgent):
    """Fails at its third transition, or at its first update."""

    def __init__(self, *, in_update: bool = False) -> None:
        super().__init__()
        self.in_update = in_update

    def observe(self, transitions: Transitions, streams: Array) -> None:
        super().observe(transitions, streams)
        if not self.in_update and self.env_steps >= 3:
            raise ValueError("broken weights")

    def update(self, n: int) -> Mapping[str, Any]:
        if self.in_update:
            raise ValueError("broken weights")
        return super().update(n)


def failed(learner: BackgroundLearner) -> BackgroundLearner:
    """The learner, once its agent has failed."""
    for _ in range(3):
        learner.observe(batch(1.0), SLOT)
    learner._thread.join(10)
    return learner


@pytest.mark.parametrize("in_update", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda learner: learner.act(line(0.0)[None], ActMode.EXPLORE, SLOT),
        lambda learner: learner.observe(batch(1.0), SLOT),
        lambda learner: list(learner.learned()),
        lambda learner: learner.read(lambda: None),
        lambda learner: learner.cut([0]),
        lambda learner: learner.start_episode(),
        lambda learner: learner.close(),
    ],
)
def test_a_failure_surfaces_at_the_next_call(call: Callable[[BackgroundLearner], Any], in_update: bool) -> None:
    learner = background(Failing(in_update=in_update))
    with pytest.raises(AgentError, match="broken weights") as raised:  # noqa: PT012 - either may be the next call
        failed(learner)
        call(learner)
    assert isinstance(raised.value.__cause__, ValueError)


class _FailsToStart(PolicyAgent):
    """Fails at the start of an episode, once the gate is open."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self._gate = gate

    def on_episode_start(self) -> None:
        self._gate.wait()
        raise ValueError("broken weights")


@pytest.mark.parametrize("make", [lambda agent: DirectLearner(agent, is_manual=False), background])
def test_an_agent_that_could_not_be_read_has_not_failed(make: Callable[[PolicyAgent], Learner]) -> None:
    def fail() -> None:
        raise MemoryError("no room for a copy")

    learner = make(PolicyAgent())
    with pytest.raises(MemoryError):
        learner.read(fail)()
    learner.observe(batch(1.0), SLOT)
    assert learner.read(lambda: "later")() == "later"
    assert learner.failure is None
    learner.close()


def test_a_host_that_waits_for_room_hears_of_the_failure() -> None:
    gate = threading.Event()
    learner = background(_FailsToStart(gate), capacity=1)
    learner.start_episode()
    threading.Timer(0.05, gate.set).start()
    with pytest.raises(AgentError, match="broken weights"):  # noqa: PT012 - the failure comes at some later call
        for _ in range(100):
            learner.observe(batch(1.0), SLOT)


def test_a_call_that_was_waiting_is_answered_with_the_failure() -> None:
    gate = threading.Event()
    learner = background(_FailsToStart(gate))
    learner.start_episode()
    wait = learner.read(lambda: None)
    gate.set()
    with pytest.raises(ValueError, match="broken weights"):
        wait()
    with pytest.raises(AgentError):
        learner.close()


def test_calls_made_while_the_agent_fails_never_hang() -> None:
    for _ in range(30):
        learner = background(Failing(), capacity=4)
        waits: list[Callable[[], Any]] = []
        with pytest.raises(AgentError):  # noqa: PT012 - the failure comes at some later call
            while True:
                learner.observe(batch(1.0), SLOT)
                waits.append(learner.read(lambda: None))
        for wait in waits:
            with contextlib.suppress(ValueError):
                wait()
        with pytest.raises(AgentError):
            learner.close()


def test_closing_twice_is_closing_once() -> None:
    learner = background(PolicyAgent())
    learner.close()
    learner.close()
