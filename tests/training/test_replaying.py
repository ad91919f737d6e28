"""A run with a whole input journal can be replayed, and leads to the same checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.session.journal_hosts import FORMS, Learning, World, opened
from tests.session.test_input_journal import abandoned

from rekindle import EpisodeStatus, Experience, Interrupter, TrainingSession, verify
from rekindle.agents import Tabular
from rekindle.errors import CheckpointError, ConfigError, Interrupted
from rekindle.run.finding import find_runs
from rekindle.training import replay_run


def killed_and_closed(root: Path, form: str, **changes: Any) -> Path:
    """A run that was killed twice, and closed twice."""
    learner, host = FORMS[form]
    options: dict[str, Any] = {"learner": learner, "journal_keep": "all", "keep_checkpoints": 9, **changes}
    world, path = World(), root
    for part in range(4):
        session = opened(root, Learning(), **options)
        for name in list(session._parts.streams.table.slots) if session.resumed else []:  # pyright: ignore[reportPrivateUsage]
            session.stream(name).abandon()
        for call, _ in enumerate(host(session, world, 40)):
            if call == 24 + part:
                break
        assert session.run is not None
        path = session.run.path
        if part % 2:
            session.close()
        else:
            abandoned(session)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_a_replay_leads_to_every_checkpoint_of_the_run(form: str, tmp_path: Path) -> None:
    path = killed_and_closed(tmp_path, form)
    before = verify(path)
    again = replay_run(path, tmp_path / "again", agent=Learning(seed=99))
    assert again.ok
    assert len(again.checkpoints) >= 4
    assert all(one.is_equal for one in again.checkpoints)
    assert (again.first_difference, again.first_other_action, again.versions) == (None, None, [])
    assert again.output == str(tmp_path / "again")
    found = verify(tmp_path / "again")
    assert (found.ok, found.problems) == (True, [])
    assert found.digests["weights"] == before.digests["weights"]
    assert verify(path) == before


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_a_replay_compares_the_checkpoint_of_a_session_that_ended_an_episode_when_it_was_closed(
    learner: Any, tmp_path: Path
) -> None:
    path = tmp_path
    for number in range(3):
        options: dict[str, Any] = {"journal_keep": "all", "keep_checkpoints": 9, "learner": learner}
        session = TrainingSession.open("run", Learning(), root=tmp_path, journal=True, signals=False, **options)
        seen, after = np.full((2, 3), number, np.float32)
        session.observe(Experience(seen, session.act(seen), 1.0, after, EpisodeStatus.TERMINATED))
        session.close()
        assert session.run is not None
        path = session.run.path
    again = replay_run(path, agent=Learning())
    assert again.ok
    assert [one.step for one in again.checkpoints] == [1, 2, 3]


def test_a_checkpoint_right_after_the_restart_of_a_background_learner_is_compared(tmp_path: Path) -> None:
    options: dict[str, Any] = {"journal_keep": "all", "learner": "background", "checkpoint_every": None}
    path = tmp_path
    for number in range(2):  # the first session is killed before its first call
        session = TrainingSession.open("run", Learning(), root=tmp_path, journal=True, signals=False, **options)
        if number == 1:
            session.checkpoint(wait=True)
            seen, after = np.full((2, 3), number, np.float32)
            session.observe(Experience(seen, session.act(seen), 1.0, after, EpisodeStatus.CONTINUING))
        assert session.run is not None
        path = session.run.path
        abandoned(session)
    again = replay_run(path, agent=Learning())
    assert (again.ok, [one.step for one in again.checkpoints]) == (True, [0])


def tabular_run(root: Path, **options: Any) -> Path:
    """A run of an agent that is part of rekindle."""
    agent = Tabular(spaces.Discrete(4), spaces.Discrete(2), seed=3, learning_rate=0.3)
    settings: dict[str, Any] = {"journal": True, "journal_keep": "all", "checkpoint_every": 10, **options}
    with TrainingSession.open("line", agent, root=root, signals=False, **settings) as session:
        stream = session.stream()
        stream.begin(0)
        for step in range(25):
            stream.step(step % 4, float(step % 3), terminated=step % 7 == 6)
            if not stream.is_open:
                stream.begin(0)
    assert session.run is not None
    return session.run.path


def test_an_agent_of_ours_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tabular_run(tmp_path)
    monkeypatch.setattr("rekindle.session.replaying._PROGRESS_EVERY", -1.0)
    calls: list[tuple[int, int]] = []
    again = replay_run(path, progress=lambda made, of: calls.append((made, of)))
    assert again.ok
    assert again.output is None
    assert [one.step for one in again.checkpoints] == [10, 20, 25]
    assert find_runs(tmp_path) == [path]
    assert calls[0] == (1, again.records)
    assert calls == sorted(calls)


def test_a_checkpoint_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    path = tabular_run(tmp_path)
    (path / "checkpoints" / "step_20.mpk").write_bytes(b"damaged")
    again = replay_run(path)
    assert again.ok
    assert [one.step for one in again.checkpoints] == [10, 25]


def test_a_run_that_is_being_written_can_be_replayed_up_to_its_newest_checkpoint(tmp_path: Path) -> None:
    agent = Tabular(spaces.Discrete(4), spaces.Discrete(2), seed=3)
    with TrainingSession.open("line", agent, root=tmp_path, journal=True, journal_keep="all", signals=False) as session:
        stream = session.stream()
        stream.begin(0)
        stream.step(1, 1.0)
        session.checkpoint(wait=True)
        stream.step(2, 1.0)
        assert session.run is not None
        again = replay_run(session.run.path)
        assert again.ok
        assert [one.step for one in again.checkpoints] == [1]


def test_kept_data_are_made_again_too(tmp_path: Path) -> None:
    path = tabular_run(tmp_path, keep_data=True)
    again = replay_run(path, tmp_path / "again")
    assert again.ok
    assert list((tmp_path / "again" / "data").glob("rows_*"))


def test_the_first_checkpoint_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tabular_run(tmp_path)
    update = Tabular.update

    def other(self: Tabular, n: int) -> Any:
        if self.env_steps == 15:
            self._table[0, 0] += 1e-12  # pyright: ignore[reportPrivateUsage]
        return update(self, n)

    monkeypatch.setattr(Tabular, "update", other)
    again = replay_run(path)
    assert not again.ok
    assert again.first_difference == 20
    assert [one.equal["weights"] for one in again.checkpoints] == [True, False, False]


class TestRefusals:
    def test_a_run_without_a_journal(self, tmp_path: Path) -> None:
        path = tabular_run(tmp_path, journal=False, journal_keep="needed")
        with pytest.raises(CheckpointError, match="has no input journal"):
            replay_run(path)

    def test_a_journal_of_which_the_beginning_was_removed(self, tmp_path: Path) -> None:
        path = tabular_run(tmp_path, journal_keep="needed")
        with pytest.raises(CheckpointError, match="does not begin with the first call"):
            replay_run(path)

    def test_a_journal_that_was_kept_only_later(self, tmp_path: Path) -> None:
        path = tabular_run(tmp_path, journal_keep="needed", checkpoint_every=None)
        with pytest.raises(CheckpointError, match="does not begin with the first call"):
            replay_run(path)

    def test_an_agent_that_only_the_run_names(self, tmp_path: Path) -> None:
        path = killed_and_closed(tmp_path, "streams")
        with pytest.raises(ConfigError, match=r"journal_hosts:Learning, which is not part of rekindle"):
            replay_run(path)

    def test_another_agent(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="and not Learning"):
            replay_run(tabular_run(tmp_path), agent=Learning())

    def test_an_output_that_exists(self, tmp_path: Path) -> None:
        path = tabular_run(tmp_path)
        with pytest.raises(ConfigError, match="exists"):
            replay_run(path, tmp_path)

    def test_settings_that_changed_in_the_middle(self, tmp_path: Path) -> None:
        tabular_run(tmp_path, metrics_every=7)
        path = tabular_run(tmp_path, metrics_every=3)
        with pytest.raises(CheckpointError, match=r"changed at record \d+ \(metrics_every was 7 and is 3\)"):
            replay_run(path)

    def test_a_run_without_a_checkpoint(self, tmp_path: Path) -> None:
        path = tabular_run(tmp_path)
        for checkpoint in path.glob("checkpoints/*"):
            checkpoint.unlink()
        with pytest.raises(CheckpointError, match="no intact checkpoint"):
            replay_run(path)


def test_a_replay_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    path = tabular_run(tmp_path / "runs")
    interrupter = Interrupter()
    interrupter.stop("Ctrl-C")
    with pytest.raises(Interrupted):
        replay_run(path, tmp_path / "again", interrupter=interrupter)
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]
