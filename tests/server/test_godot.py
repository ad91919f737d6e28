"""Games of Godot RL Agents, older and newer, train one session."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.server.godot_games import CHOICE, COMPOSITE, LINE, FakeGame, NotingAgent, Served, mutated, obs, served

from rekindle import TrainingSession
from rekindle.errors import ConfigError
from rekindle.server.godot import GodotServer
from rekindle.server.godot_play import EndRules

TERMINATED, TRUNCATED = 1, 2


def rewards_and_statuses(made: Served) -> list[tuple[float, int]]:
    return [(reward, status) for _, _, _, reward, _, status in made.taken]


def test_a_game_of_an_older_plugin_trains() -> None:
    with served() as made:
        game = made.game()
        assert game.join(agents=2) == {"type": "reset"}
        first = game.reset(obs(0, 0), obs(1, 1))
        assert [set(action) for action in first] == [{"move"}, {"move"}]
        assert all(action["move"] in (0, 1, 2) for action in first)
        game.step([obs(0, 1), obs(1, 2)], [0.5, -1], [False, False])
        made.stop()
        assert game.receive() == {"type": "close"}
    agent = made.agents[0]
    assert agent.observation_space == gym.spaces.Box(-np.inf, np.inf, (2,))
    assert agent.action_space == gym.spaces.Discrete(3)
    for row, (start, end, reward) in enumerate(((0, 1, 0.5), (1, 2, -1.0))):
        stream, observation, action, got, following, status = made.taken[row]
        assert (stream, observation.tolist(), got, status) == (row, [start, start], reward, 0)
        assert following.tolist() == [start, end]
        assert action == first[row]["move"]


def test_a_game_of_a_newer_plugin_with_composite_actions_trains() -> None:
    with served() as made:
        game = made.game()
        assert game.join(2, [LINE] * 2, [COMPOSITE] * 2, names=["shared_policy"] * 2) == {"type": "reset"}
        first = game.reset(obs(0, 0), obs(1, 1))
        for action in first:
            assert len(action["steer"]) == 2
            assert all(-1 <= number <= 1 for number in action["steer"])
            assert action["gear"] in (0, 1, 2)
        game.step([obs(0, 1), obs(1, 2)], [0, 0], [False, False], [{}, {}])
    space = made.agents[0].action_space
    assert isinstance(space, gym.spaces.Dict)
    assert [*space.spaces] == ["steer", "gear"]
    for row in range(2):
        assert made.taken[row][2].tolist() == [*first[row]["steer"], first[row]["gear"]]


def test_images_are_hexadecimal_and_parts_are_a_dict() -> None:
    space = {
        "camera_2d": {"size": [2, 2, 3], "space": "box"},
        "speed": {"size": [1], "space": "box", "low": 0, "high": 9},
        "room": {"size": 4, "space": "discrete"},
    }
    pixels = np.arange(12, dtype=np.uint8)
    with served() as made:
        game = made.game()
        game.join(1, space, CHOICE)
        game.reset({"camera_2d": pixels.tobytes().hex(), "speed": [3.5], "room": 2})
        game.step([{"camera_2d": pixels[::-1].tobytes().hex(), "speed": [4], "room": [3.0]}], [0], [0])
    agent = made.agents[0]
    assert agent.observation_space["camera_2d"] == gym.spaces.Box(0, 255, (2, 2, 3), np.uint8)
    assert agent.observation_space["speed"] == gym.spaces.Box(0, 9, (1,))
    assert agent.observation_space["room"] == gym.spaces.Discrete(4)
    _, observation, _, _, following, _ = made.taken[0]
    assert observation["camera_2d"].tolist() == pixels.reshape(2, 2, 3).tolist()
    assert following["camera_2d"].tolist() == pixels[::-1].reshape(2, 2, 3).tolist()
    assert (observation["speed"].tolist(), int(observation["room"]), int(following["room"])) == ([3.5], 2, 3)


def test_done_is_a_termination_whose_last_observation_is_missing() -> None:
    with served() as made:
        game = made.game()
        game.join()
        game.reset(obs(0, 0))
        game.step([obs(0, 1)], [1], [False])
        game.step([obs(5, 5)], [2], [True])  # the first observation of the next episode
        game.step([obs(5, 6)], [3], [False])
    assert rewards_and_statuses(made) == [(1.0, 0), (2.0, TERMINATED), (3.0, 0)]
    assert made.taken[1][4].tolist() == [0, 1], "the observation before stands in for the one that is missing"
    assert made.taken[2][1].tolist() == [5, 5]
    counts = made.server.counts
    assert (counts.terminated, counts.truncated, counts.unclear_ends, counts.no_last_observation) == (1, 0, 1, 1)


def test_info_tells_truncation_and_the_last_observation() -> None:
    with served() as made:
        game = made.game()
        game.join(2)
        game.reset(obs(0, 0), obs(0, 0))
        infos = [
            {"TimeLimit.truncated": True, "terminal_observation": obs(0, 9), "is_success": True},
            {"TimeLimit.truncated": False, "terminal_observation": [0, 8]},
        ]
        game.step([obs(5, 5), obs(6, 6)], [1, 2], [True, True], infos)
        game.step([obs(5, 6), obs(6, 7)], [3, 4], [False, False], [{}, {}])
    assert rewards_and_statuses(made) == [(1.0, TRUNCATED), (2.0, TERMINATED), (3.0, 0), (4.0, 0)]
    assert made.taken[0][4].tolist() == [0, 9]
    assert made.taken[1][4].tolist() == [0, 8]
    assert made.taken[2][1].tolist() == [5, 5]
    assert made.server.counts.missing == {}
    assert (made.server.counts.terminated, made.server.counts.truncated) == (1, 1)


@pytest.mark.parametrize("rules", [EndRules("truncated"), EndRules(time_limit=2)])
def test_a_truncation_without_a_last_observation_ends_at_the_transition_before(rules: EndRules) -> None:
    with served(rules=rules) as made:
        game = made.game()
        game.join()
        game.reset(obs(0, 0))
        game.step([obs(0, 1)], [1], [False])
        game.step([obs(5, 5)], [2], [True])
        game.step([obs(5, 6)], [3], [False])
    assert rewards_and_statuses(made) == [(1.0, 0), (3.0, 0)]
    assert made.taken[1][1].tolist() == [5, 5]
    assert made.server.counts.cut_transitions == 1
    session = made.server.session
    assert session is not None
    assert session.episodes == 2


def test_a_time_limit_leaves_shorter_episodes_terminated() -> None:
    with served(rules=EndRules(time_limit=3)) as made:
        game = made.game()
        game.join()
        game.reset(obs(0, 0))
        game.step([obs(0, 1)], [1], [False])
        game.step([obs(5, 5)], [2], [True])
    assert rewards_and_statuses(made) == [(1.0, 0), (2.0, TERMINATED)]
    assert made.server.counts.unclear_ends == 0, "the option says what the ends are"


def test_what_is_missing_is_warned_of_once_and_shown(tmp_path: Path) -> None:
    warned: list[str] = []

    def note(event: Any) -> None:
        if type(event).__name__ == "Warned":
            warned.append(event.message)

    with served(session={"callbacks": [note]}) as made:
        game = made.game()
        game.join()
        game.reset(obs(0, 0))
        for _ in range(3):
            game.step([obs(0, 0)], [1], [True])
        assert "3 unclear ends" in made.server.status
        assert "3 terminations without a last observation" in made.server.status
    assert len(warned) == 2
    assert any("--time-limit" in message for message in warned)


def test_several_games_are_one_batch_of_streams() -> None:
    with served() as made:
        first, second = made.game(), made.game()
        first.join(2)
        second.join(3)
        first.reset(obs(0, 0), obs(0, 1))
        second.reset(obs(1, 0), obs(1, 1), obs(1, 2))
        for _ in range(5):
            second.step([obs(1, 0), obs(1, 1), obs(1, 2)], [1, 1, 1], [False] * 3)
            first.step([obs(0, 0), obs(0, 1)], [0, 0], [False] * 2)
        assert len(made.server.games) == 2
    by_stream = {(stream, observation.tolist()[0], reward) for stream, observation, _, reward, _, _ in made.taken}
    assert by_stream == {(0, 0, 0.0), (1, 0, 0.0), (2, 1, 1.0), (3, 1, 1.0), (4, 1, 1.0)}


def test_a_game_that_leaves_is_forgotten_and_another_takes_its_place() -> None:
    with served() as made:
        stays, leaves = made.game(), made.game()
        stays.join()
        leaves.join()
        stays.reset(obs(0, 0))
        leaves.reset(obs(1, 1))
        leaves.step([obs(1, 2)], [7], [False])
        leaves.close()
        stays.step([obs(0, 1)], [1], [False])
        again = made.game()
        again.join()
        again.reset(obs(2, 2))
        again.step([obs(2, 3)], [8], [False])
        stays.step([obs(0, 2)], [2], [False])
        assert [game.number for game in made.server.games] == [0, 1]
    rewards = [reward for reward, _ in rewards_and_statuses(made)]
    assert rewards == [7.0, 1.0, 8.0, 2.0]


@pytest.mark.parametrize("reward", [b"1e99999", b"-1e16"])
def test_values_that_are_not_finite_end_the_episode_and_are_counted(reward: bytes) -> None:
    with served() as made:
        game = made.game()
        game.join(2)
        game.reset(obs(0, 0), obs(1, 1))
        game.send_text(b'{"type":"step","obs":[{"obs":[nan,0]},{"obs":[1,2]}],"reward":[1,1],"done":[false,false]}')
        reply = game.receive()
        assert reply is not None
        assert reply["action"][0] == {"move": 0}
        game.step([{"obs": [None, 1]}, obs(1, 3)], [2, 2], [False, False])
        outcome = b'{"type":"step","obs":[{"obs":[0,1]},{"obs":[1,4]}],"reward":[3,%b],"done":[false,false]}'
        game.send_text(outcome % reward)
        assert game.receive() is not None
        game.step([obs(0, 2), obs(1, 5)], [4, 4], [False, False])
    assert [(stream, reward) for stream, _, _, reward, _, _ in made.taken] == [(1, 1.0), (1, 2.0), (0, 4.0), (1, 4.0)]
    assert made.server.counts.bad_values == 2
    session = made.server.session
    assert session is not None
    assert session.episodes == 3  # the broken one of agent 1, and those that were open at the end


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"not json", "not JSON"),
        (b"[]", "expected a message of the type 'step'"),
        (b'{"type":"reset","obs":[]}', "type 'reset'"),
        (b'{"type":"step"}', "'obs' has no value for each"),
        (b'{"type":"step","obs":[{"obs":[0]}],"reward":[0],"done":[false]}', "shape [2]"),
        (b'{"type":"step","obs":[{"eyes":[0,0]}],"reward":[0],"done":[false]}', "has no 'obs'"),
        (b'{"type":"step","obs":[{"obs":[0,0]}],"reward":["x"],"done":[false]}', "rewards"),
        (b'{"type":"step","obs":[{"obs":[0,0]}],"reward":[0],"done":["no"]}', "true or false"),
        (
            b'{"type":"step","obs":[{"obs":[0,0]}],"reward":[0],"done":[true],'
            b'"info":[{"terminal_observation":[1,2,3]}]}',
            "shape [2]",
        ),
    ],
)
def test_a_game_that_sends_nonsense_is_disconnected_and_no_other(
    message: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with served() as made:
        good, bad = made.game(), made.game()
        good.join()
        bad.join()
        good.reset(obs(0, 0))
        bad.reset(obs(1, 1))
        bad.send_text(message)
        assert bad.receive() is None
        good.step([obs(0, 1)], [1], [False])
        good.step([obs(0, 2)], [2], [False])
    assert [reward for reward, _ in rewards_and_statuses(made)] == [1.0, 2.0]
    assert said in caplog.text


@pytest.mark.parametrize(
    ("observation", "action", "said"),
    [
        ({"obs": {"size": [3], "space": "box"}}, CHOICE, "differ from those of the first game"),
        (LINE, COMPOSITE, "differ from those of the first game"),
        (LINE, {"move": {"size": 0, "action_type": "discrete"}}, "the size of action 'move' is 0"),
        (LINE, {"move": {"size": 2, "action_type": "spin"}}, "use discrete or continuous"),
        ({"obs": {"size": [0], "space": "box"}}, CHOICE, "the size of observation 'obs'"),
        ({"obs": {"size": [2], "space": "text"}}, CHOICE, "use box or discrete"),
        ([LINE, LINE], CHOICE, "describes 2 agents, but n_agents is 1"),
        ({}, CHOICE, "1 to 256 parts"),
    ],
)
def test_a_game_that_does_not_fit_is_refused(
    observation: Any, action: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with served() as made:
        good = made.game()
        good.join()
        assert made.game().join(1, observation, action) is None
        good.reset(obs(0, 0))
    assert said in caplog.text


def test_agents_of_one_game_with_different_spaces_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    with served() as made:
        assert made.game().join(2, [LINE, {"obs": {"size": [3], "space": "box"}}], CHOICE, names=["a", "b"]) is None
    assert "agents 0 and 1 have different spaces" in caplog.text
    assert made.server.session is None


def test_a_browser_and_too_many_games_are_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    with served(max_games=1) as made:
        browser = made.game()
        assert browser.receive() is not None
        assert browser.receive() is not None
        browser.socket.sendall(b"POST / HTTP/1.1\r\n\r\n")
        assert browser.receive() is None
        made.game().join()
        assert made.game().receive() is None
    assert "is this a browser?" in caplog.text
    assert "a game was refused" in caplog.text


def test_a_game_that_does_not_read_holds_nobody_up() -> None:
    with served() as made:
        slow, fast = made.game(), made.game()
        slow.join()
        fast.join()
        fast.reset(obs(0, 0))
        slow.socket.sendall(b"\x50\x00\x00\x00{")  # a message that never ends
        for step in range(20):
            fast.step([obs(0, step)], [step], [False])
    assert len(made.taken) == 20


def test_a_connection_that_says_nothing_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rekindle.server.godot._JOIN_SECONDS", 0.0)
    with served() as made:
        silent = made.game()
        assert silent.receive() is not None
        assert silent.receive() is not None
        assert silent.receive() is None
    assert "a new connection disconnected: it said nothing" in caplog.text


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.exhaustive)])
def test_malformed_games_disturb_nobody(count: int) -> None:
    rng = random.Random(count)
    with served(max_message=100_000) as made:
        good = made.game()
        good.join()
        good.reset(obs(0, 0))
        for attempt in range(count):
            bad = FakeGame(made.server.port)
            with contextlib.suppress(OSError, AssertionError):
                if rng.random() < 0.5:
                    bad.join()
                if rng.random() < 0.5:
                    bad.reset(obs(1, 1))
                bad.socket.sendall(mutated(rng) if rng.random() < 0.5 else rng.randbytes(rng.randrange(200)))
                if rng.random() < 0.3:
                    bad.socket.settimeout(0.05)  # what is not a whole message is not answered
                    bad.receive()
            bad.close()
            good.step([obs(0, attempt)], [attempt], [False])
    assert [reward for stream, _, _, reward, _, _ in made.taken if stream == 0] == list(range(count))


def test_the_server_ends_with_the_session_and_tells_the_games() -> None:
    with served(session={"max_steps": 4}) as made:
        game = made.game()
        game.join(2)
        game.reset(obs(0, 0), obs(1, 1))
        game.step([obs(0, 1), obs(1, 2)], [1, 1], [False, False])
        assert game.ask({"type": "step", "obs": [obs(0, 2), obs(1, 3)], "reward": [1, 1], "done": [False, False]}) == {
            "type": "close"
        }
    assert len(made.taken) == 4


def test_a_policy_plays_without_learning() -> None:
    with served(play=True) as made:
        game = made.game()
        game.join(2)
        game.reset(obs(0, 0), obs(1, 1))
        game.step([obs(0, 1), obs(1, 2)], [1, 5], [False, True])
        game.step([obs(0, 2), obs(1, 3)], [2, 0], [True, False])
        assert "the last 2 episodes  return 4.00" in made.server.status
    assert made.taken == []


def test_an_error_of_the_session_ends_the_server() -> None:
    def refuse(observation_space: Any, action_space: Any) -> TrainingSession:
        raise ConfigError("dqn takes Discrete actions")

    made = Served(open_session=refuse)
    made.start()
    game = made.game()
    assert game.join() is None
    made.stop()
    game.close()
    assert isinstance(made.error, ConfigError)


def test_a_port_that_is_taken_is_named() -> None:
    with served() as made, pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{made.server.port}"):
        GodotServer(lambda *_: TrainingSession(NotingAgent(*_)), port=made.server.port)


def test_text_that_cannot_be_written_disconnects_its_game_only(tmp_path: Path) -> None:
    def open_session(observation_space: Any, action_space: Any) -> TrainingSession:
        agent = NotingAgent(observation_space, action_space)
        return TrainingSession.open("text", agent, root=tmp_path, journal=True, signals=False)

    with served(open_session=open_session) as made:
        good, bad, worse = made.game(), made.game(), made.game()
        good.join()
        bad.join()
        good.reset(obs(0, 0))
        bad.reset(obs(0, 0))
        half = "\ud800"
        end = {"type": "step", "obs": [obs(1, 1)], "reward": [1.0], "done": [True], "info": [{half: 1.0}]}
        assert bad.ask(end) is None
        assert worse.join(observation={half: LINE["obs"]}) is None
        assert good.step([obs(1, 1)], [1.0], [False])


def test_infos_of_any_name_leave_the_return_and_the_number_of_metrics_alone(tmp_path: Path) -> None:
    def open_session(observation_space: Any, action_space: Any) -> TrainingSession:
        agent = NotingAgent(observation_space, action_space)
        return TrainingSession.open("infos", agent, root=tmp_path, journal=True, signals=False, metrics_every=100)

    with served(open_session=open_session) as made:
        game = made.game()
        game.join()
        game.reset(obs(0, 0))
        for number in range(100):
            info = {"return": 1000.0, "length": 0.0, f"place {number}": 1.0}
            game.step([obs(1, 1)], [2.0], [True], [info])
        session = made.server.session
        assert session is not None
        session.flush()
        assert (session.store.latest("episode/return"), session.store.latest("episode/length")) == (2.0, 1.0)
        assert len([name for name in session.store.names if name.startswith("episode/place")]) == 64
