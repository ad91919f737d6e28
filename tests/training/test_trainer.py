"""The trainer: from an environment and an agent to a run that can be left and continued at any step."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import env_worlds
import gymnasium
import numpy as np
import pytest
from toys import ToyAgent

import rekindle
from rekindle.agent import State
from rekindle.agents import Tabular
from rekindle.checkpoint.store import list_steps
from rekindle.envs import Determinism
from rekindle.errors import CheckpointError, ConfigError, EnvError, Interrupted, RekindleError
from rekindle.events import EpisodeEnded, Evaluated, MetricsFlushed, TrainingEnded, TrainingStarted, Updated
from rekindle.experience import Array, EpisodeStatus, Transitions
from rekindle.interrupt import Interrupter
from rekindle.run.directory import TrainingRun
from rekindle.run.finding import find_runs
from rekindle.session import restoring
from rekindle.training import Components, EpisodeEvaluator, Evaluation, Round, Synchronous, Trainer

STEPS = 240


def toy(observation_space: Any, action_space: Any) -> ToyAgent:
    return ToyAgent(seed=1)


def make(root: Path, env: Any = env_worlds.Path, agent: Any = toy, **options: Any) -> Trainer:
    chosen = {
        "steps": STEPS,
        "name": "t",
        "root": root,
        "seed": 5,
        "checkpoint_every": 50,
        "metrics_every": 40,
        "eval_every": 60,
        "eval_episodes": 3,
    }
    return Trainer(env, agent, **{**chosen, **options})


def digests(root: Path) -> dict[str, str | None]:
    found = rekindle.verify(root / "t")
    assert found.problems == []
    return found.digests


def leave_at(trainer: Trainer, step: int) -> None:
    for made in trainer.steps():
        if made.total_steps >= step:
            break


class Cross:
    """Attached state: a count of episodes, kept by a handler."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: EpisodeEnded) -> None:
        self.count += 1

    def state(self) -> State:
        return {"count": self.count}

    def load_state(self, state: State) -> None:
        self.count = state["count"]


def curriculum(stream: int, episode: int, env_steps: int) -> dict[str, Any]:
    return {"level": (stream + episode + env_steps // 50) % 5}


def doubled(transitions: Transitions, streams: Any) -> Array:
    return transitions.rewards * 2


TRAININGS: dict[str, dict[str, Any]] = {
    "one": {},
    "several": {"num_envs": 3},
    "workers": {"num_envs": 2, "vectorization": "async"},
    "leaky": {"env": env_worlds.Leaky, "num_envs": 2},
    "named observations": {"env": lambda: env_worlds.Path(named=True)},
    "saved": {"env": env_worlds.Saved},
    "saved in workers": {"env": lambda: env_worlds.Saved(named=True), "num_envs": 2, "vectorization": "async"},
    "saved and processed": {"env": env_worlds.Saved, "num_envs": 2, "step_processor": doubled},
    "curriculum": {"reset_options": curriculum},
    "curriculum of several": {"reset_options": curriculum, "num_envs": 2},
    "processed": {"step_processor": doubled},
    "several processed": {"step_processor": doubled, "num_envs": 2},
    "table": {"env": "FrozenLake-v1", "agent": "tabular"},
    "table of several": {"env": "FrozenLake-v1", "agent": "tabular", "num_envs": 3},
}


class TestExactResume:
    @pytest.mark.parametrize("kind", TRAININGS)
    def test_left_in_mid_episode_and_continued_it_is_the_run_that_was_not(self, tmp_path: Path, kind: str) -> None:
        options = TRAININGS[kind]
        make(tmp_path / "whole", **options).train()
        for step in (31, 77, 141):
            leave_at(make(tmp_path / "cut", **options), step)
        report = make(tmp_path / "cut", **options).train()
        assert report.status == "finished"
        found = rekindle.verify(tmp_path / "cut" / "t")
        assert found.grade == "exact"
        assert found.digests == digests(tmp_path / "whole")
        resumes = rekindle.RunReader(tmp_path / "cut" / "t").metadata.resumes
        assert [resume.grade for resume in resumes] == ["exact"] * 3

    def test_a_second_train_goes_on_and_equals_one_long_training(self, tmp_path: Path) -> None:
        make(tmp_path / "whole").train()
        trainer = make(tmp_path / "cut", steps=101)
        assert trainer.train().env_steps == 101
        assert trainer.train().env_steps == 101
        assert trainer.train(STEPS).env_steps == STEPS
        assert digests(tmp_path / "cut") == digests(tmp_path / "whole")

    def test_evaluations_leave_no_trace_in_the_training(self, tmp_path: Path) -> None:
        for name, every in (("often", 7), ("never", None)):
            make(tmp_path / name, eval_every=every, eval_episodes=3 if every else 0).train()
        assert digests(tmp_path / "often")["weights"] == digests(tmp_path / "never")["weights"]
        rows = [rekindle.RunReader(tmp_path / name / "t").train_episodes() for name in ("often", "never")]
        timeless = [[{**row, "wall_time": 0} for row in part] for part in rows]
        assert timeless[0] == timeless[1]

    def test_handlers_with_state_are_restored(self, tmp_path: Path) -> None:
        for step in (90, STEPS):
            trainer, counter = make(tmp_path), Cross()
            trainer.on(EpisodeEnded, counter)
            leave_at(trainer, step)
        assert counter.count == trainer.report.episodes == len(rekindle.RunReader(tmp_path / "t").train_episodes())

    @pytest.mark.parametrize("num_envs", [1, 2])
    def test_an_environment_that_can_be_brought_back_does_not_live_its_episode_again(
        self, tmp_path: Path, num_envs: int
    ) -> None:
        def endless() -> env_worlds.Saved:
            return env_worlds.Saved(limit=10_000, wall=10_000)

        options: dict[str, Any] = {"env": endless, "num_envs": num_envs, "eval_episodes": 0}
        leave_at(make(tmp_path, **options), 100)
        before = env_worlds.Saved.steps_in_all
        leave_at(make(tmp_path, **options), 110)
        assert env_worlds.Saved.steps_in_all - before == 10
        assert rekindle.RunReader(tmp_path / "t").metadata.resumes[0].grade == "exact"

    def test_a_state_that_is_ahead_of_the_session_is_not_used(self, tmp_path: Path) -> None:
        class Torn(env_worlds.Saved):
            """The second of two fails when the first has made its step."""

            count = 0
            fails = True

            def step(self, action: Any) -> env_worlds.Answer:
                Torn.count += 1
                if Torn.count == 20 and Torn.fails:
                    raise ZeroDivisionError("torn")
                return super().step(action)

        options: dict[str, Any] = {"num_envs": 2, "eval_episodes": 0, "determinism": Determinism.REPEATS}
        with pytest.raises(EnvError, match="torn"):
            make(tmp_path / "torn", env=lambda: Torn(), **options).train()  # noqa: PLW0108 - it is made anew
        Torn.fails = False
        make(tmp_path / "torn", env=lambda: Torn(), **options).train()  # noqa: PLW0108
        make(tmp_path / "whole", env=lambda: Torn(), **options).train()  # noqa: PLW0108
        assert digests(tmp_path / "torn") == digests(tmp_path / "whole")


class TestApproximateResume:
    @pytest.mark.parametrize(
        ("options", "lost"),
        [
            ({"env": env_worlds.Moody}, "does not repeat an episode"),
            ({"env": env_worlds.Moody, "num_envs": 2}, "does not repeat an episode"),
            (
                {"env": "CartPole-v1", "num_envs": 3, "vectorization": "native"},
                "cannot be restored",
            ),
        ],
        ids=["moody", "moody vector", "native"],
    )
    def test_what_cannot_be_brought_back_is_closed_as_truncated_and_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], lost: str
    ) -> None:
        monkeypatch.setattr(env_worlds.Moody, "_moods", itertools.count())  # whichever tests have used it before
        leave_at(make(tmp_path, **options), 31)
        report = make(tmp_path, **options).train()
        assert report.status == "finished"
        reader = rekindle.RunReader(tmp_path / "t")
        (resume,) = reader.metadata.resumes
        assert resume.grade == "approximate"
        assert lost in resume.lost[0]
        assert any("closed as truncated" in note for note in resume.lost)
        assert rekindle.verify(tmp_path / "t").grade == "approximate"

    def test_a_run_that_was_never_interrupted_is_exact_all_the_same(self, tmp_path: Path) -> None:
        make(tmp_path, env=env_worlds.Moody).train()
        assert rekindle.verify(tmp_path / "t").grade == "exact"


class TestTheEnd:
    def test_the_last_agent_is_evaluated_and_its_rows_are_tagged(self, tmp_path: Path) -> None:
        make(tmp_path, steps=100).train()
        rows = rekindle.RunReader(tmp_path / "t").eval_episodes()
        assert [(row["total_steps_at_eval"], row.get("final")) for row in rows] == [(60, None)] * 3 + [(100, True)] * 3

    def test_an_evaluation_that_was_just_made_is_not_made_again(self, tmp_path: Path) -> None:
        calls: list[int] = []

        class Counted(EpisodeEvaluator):
            def evaluate(self, act: Any, episodes: int) -> Evaluation:
                calls.append(episodes)
                return super().evaluate(act, episodes)

        trainer = make(tmp_path, steps=120)
        assert trainer._factory is not None
        trainer._evaluations._evaluator = Counted(trainer._factory, seed=5)
        trainer.train()
        assert calls == [3, 3]
        rows = rekindle.RunReader(tmp_path / "t").eval_episodes()
        assert [row.get("final") for row in rows] == [None] * 6 + [True] * 3
        assert [row["total_reward"] for row in rows[3:6]] == [row["total_reward"] for row in rows[6:]]

    def test_a_stop_on_the_way_is_a_checkpoint_and_no_end(self, tmp_path: Path) -> None:
        trainer = make(tmp_path)
        trainer.on(EpisodeEnded, lambda event: trainer.stop("enough") if event.stamp.env_steps > 70 else None)
        report = trainer.train()
        assert (report.status, report.reason) == ("stopped", "enough")
        assert 70 < report.env_steps < STEPS
        assert not any(row.get("final") for row in rekindle.RunReader(tmp_path / "t").eval_episodes())
        make(tmp_path).train()
        make(tmp_path / "whole").train()
        assert digests(tmp_path) == digests(tmp_path / "whole")

    def test_the_report_is_a_table_of_extremes(self, tmp_path: Path) -> None:
        report = make(tmp_path).train()
        assert report.env_steps == STEPS
        assert report.best_score is not None
        assert report.metrics["episode/return"].max >= report.metrics["episode/return"].min
        assert report.metrics["episode/return"].max_step in range(0, STEPS + 1, 40)
        assert "time/steps_per_sec" not in report.metrics
        lines = str(report).splitlines()
        assert lines[0].startswith("finished (max_steps) after 240 env steps")
        assert any(line.startswith("eval/return ") for line in lines)

    def test_without_a_name_nothing_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        trainer = Trainer("FrozenLake-v1", "tabular", steps=50, eval_episodes=2)
        assert trainer.train().path is None
        assert trainer.train(80).env_steps == 80
        assert trainer.eval(3).n_episodes == 3
        assert list(tmp_path.iterdir()) == []


class TestEarlyStopping:
    def test_a_target_that_is_reached_ends_the_training_as_finished(self, tmp_path: Path) -> None:
        report = make(tmp_path, target_score=-1000.0).train()
        assert report.status == "finished"
        assert str(report.reason).startswith("target reached: the score is ")
        assert report.env_steps == 60
        assert make(tmp_path, target_score=-1000.0).train().env_steps == 60, "a new run"

    def test_a_stop_that_a_checkpoint_knows_of_is_not_forgotten(self, tmp_path: Path) -> None:
        trainer = make(tmp_path, target_score=-1000.0, eval_every=50)
        trainer.train()
        path = trainer.path
        assert path is not None
        metadata = path / "metadata.json"  # as if it had been killed after the checkpoint of that step
        metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "status": "running"}))
        report = make(tmp_path, target_score=-1000.0, eval_every=50).train()
        assert (report.env_steps, report.status) == (50, "finished")

    def test_more_steps_go_on_after_an_early_stop(self, tmp_path: Path) -> None:
        trainer = make(tmp_path, patience=1, agent=lambda *_: Idle())
        assert (trainer.train().reason, trainer.report.env_steps) == ("no improvement in 1 evaluations", 120)
        assert trainer.train(130).env_steps == 130
        assert trainer.train(STEPS).env_steps == 180

    def test_patience_survives_a_resume(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"patience": 2, "agent": lambda *_: Idle()}
        leave_at(make(tmp_path, **options), 150)
        report = make(tmp_path, **options).train()
        assert (report.env_steps, report.reason) == (180, "no improvement in 2 evaluations")

    def test_a_time_limit_checkpoints_and_stops(self, tmp_path: Path) -> None:
        report = make(tmp_path, steps=None, time_limit=0.05).train()
        assert (report.status, report.reason) == ("stopped", "the time limit of 0.05 s is over")


class Idle(ToyAgent):
    """Never learns, so that no evaluation is better than the first."""

    def updates_due(self) -> int:
        return 0

    def observe(self, transitions: Transitions, streams: Array) -> None:
        self.env_steps += len(transitions)


class TestSteps:
    def test_steps_say_where_the_training_is(self, tmp_path: Path) -> None:
        trainer = make(tmp_path, steps=60)
        seen = list(trainer.steps())
        assert [step.total_steps for step in seen] == list(range(1, 61))
        episode, length, total = 0, 0, 0.0
        for step in seen:
            length, total = length + 1, total + step.reward
            assert (step.stream, step.episode, step.episode_step) == (0, episode, length)
            assert step.episode_reward == pytest.approx(total)
            if step.is_done:
                assert step.status is not EpisodeStatus.CONTINUING
                episode, length, total = episode + 1, 0, 0.0
        assert trainer.report.status == "finished"
        assert trainer.report.episodes == episode

    def test_rounds_of_several_environments_are_told_one_by_one(self, tmp_path: Path) -> None:
        seen = list(make(tmp_path, steps=30, num_envs=3).steps())
        assert [step.stream for step in seen] == [0, 1, 2] * 10
        assert [step.total_steps for step in seen] == [3 * (1 + index // 3) for index in range(30)]

    def test_leaving_the_loop_stops_the_run(self, tmp_path: Path) -> None:
        trainer = make(tmp_path)
        leave_at(trainer, 20)
        assert (trainer.report.status, trainer.report.reason) == ("stopped", "the host left its loop")
        assert trainer.session is None
        leave_at(trainer, 35)
        assert trainer.report.env_steps == 35

    def test_inside_the_loop_an_evaluation_is_logged(self, tmp_path: Path) -> None:
        trainer = make(tmp_path, eval_every=None)
        for step in trainer.steps():
            if step.total_steps == 10:
                assert trainer.eval(4).n_episodes == 4
                with pytest.raises(ConfigError, match="leave its loop first"):
                    trainer.train()
                break
        assert len(rekindle.RunReader(tmp_path / "t").eval_episodes()) == 4


class TestEvents:
    def test_handlers_get_the_events_of_their_kind(self, tmp_path: Path) -> None:
        trainer = make(tmp_path)
        kinds: list[type] = [TrainingStarted, EpisodeEnded, Evaluated, MetricsFlushed, TrainingEnded]
        seen: dict[type, int] = dict.fromkeys(kinds, 0)

        def count(kind: Any) -> Callable[[Any], None]:
            def handle(event: Any) -> None:
                assert type(event) is kind
                seen[kind] += 1

            return handle

        for kind in kinds:
            trainer.on(kind, count(kind))
        report = trainer.train()
        # The last window is flushed at the end, as the final evaluation left something in it.
        assert seen == {
            TrainingStarted: 1,
            EpisodeEnded: report.episodes,
            Evaluated: 5,
            MetricsFlushed: 7,
            TrainingEnded: 1,
        }

    def test_a_handler_that_raises_costs_neither_the_event_nor_the_end_of_an_episode(self, tmp_path: Path) -> None:
        make(tmp_path / "whole", num_envs=3).train()
        ended = rekindle.RunReader(tmp_path / "whole" / "t").train_episodes()[3]["env_steps"]
        heard: list[int] = []

        def fail(event: Updated) -> None:
            if event.stamp.env_steps == ended:
                raise ValueError(ended)

        trainer = make(tmp_path / "cut", num_envs=3)
        trainer.on(Updated, fail)
        trainer.on(Updated, lambda event: heard.append(event.stamp.env_steps))
        with pytest.raises(ValueError, match=str(ended)):
            trainer.train()
        assert heard[-1] == ended
        make(tmp_path / "cut", num_envs=3).train()
        assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


class TestCustomParts:
    def test_a_strategy_of_ones_own_inherits_everything_else(self, tmp_path: Path) -> None:
        class Pairs:
            def train_loop(self, components: Components) -> Any:
                while not components.session.is_done:
                    components.sampler.sample()
                    if not components.session.is_done:
                        yield components.sampler.sample()

        make(tmp_path / "own", strategy=Pairs()).train()
        make(tmp_path / "plain", strategy=Synchronous()).train()
        assert digests(tmp_path / "own") == digests(tmp_path / "plain")

    def test_a_sampler_of_ones_own_is_used(self, tmp_path: Path) -> None:
        class Half:
            def __init__(self, session: Any, envs: Any) -> None:
                self._session, self._env = session, envs.one(0)

            def sample(self) -> Round:
                stream = self._session.stream()
                action = stream.begin(stream.reset(self._env))
                observation, reward, *_ = self._env.step(action)
                stream.step(observation, reward, truncated=True)
                return Round((0,), (reward,), (2,), {})

        report = make(tmp_path, sampler=Half, steps=20).train()
        assert report.episodes == 20

    def test_an_evaluator_of_ones_own_decides_what_is_best(self, tmp_path: Path) -> None:
        class Fixed:
            def evaluate(self, act: Any, episodes: int) -> Evaluation:
                return Evaluation(42.0, [])

            def close(self) -> None: ...

        assert make(tmp_path, evaluator=Fixed()).train().best_score == 42.0


class TestStarting:
    """A run is whole from the moment it can be seen: whatever kills the process, `resume` goes on with it."""

    @pytest.fixture
    def seen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A copy of each run as it is when it has just been made."""
        make_run = TrainingRun.create_or_resume

        def watched(name: str, *options: Any, **settings: Any) -> TrainingRun:
            run = make_run(name, *options, **settings)
            if not run.is_resumed:
                shutil.copytree(run.path, tmp_path / "seen" / run.path.relative_to(tmp_path))
            return run

        monkeypatch.setattr(TrainingRun, "create_or_resume", watched)
        return tmp_path / "seen"

    @pytest.mark.parametrize("agent", ["tabular", "dqn", "ppo"])
    def test_it_can_be_resumed_as_soon_as_it_can_be_seen(self, tmp_path: Path, seen: Path, agent: str) -> None:
        if agent != "tabular":
            pytest.importorskip("jax")
        settings = {
            "tabular": {},
            "dqn": {"hidden_sizes": (8,), "warmup_steps": 50},
            "ppo": {"hidden_sizes": (8,), "rollout_steps": 20, "minibatch_size": 20, "epochs": 1},
        }
        options = {"env": "FrozenLake-v1" if agent == "tabular" else "CartPole-v1", "agent_settings": settings[agent]}
        make(tmp_path / "whole", agent=agent, **options).train()
        copy = seen / "whole" / "t"
        metadata = rekindle.RunReader(copy).metadata
        assert (metadata.status, metadata.max_steps, metadata.training is None) == ("running", STEPS, False)
        assert Trainer.resume(copy).train().env_steps == STEPS
        assert digests(seen / "whole") == digests(tmp_path / "whole")
        assert rekindle.verify(copy).grade == "exact"

    def test_it_stays_where_it_is_when_the_working_directory_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        trainer = make(Path("runs"))
        for step in trainer.steps():
            if step.total_steps == 60:
                monkeypatch.chdir(tmp_path / "elsewhere")
            if step.total_steps == 120:
                break
        assert trainer.report.path == rekindle.RunReader(tmp_path / "runs" / "t").path
        monkeypatch.chdir(tmp_path)
        resumed = Trainer.resume("runs/t", env=env_worlds.Path, agent=toy)
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert resumed.train().env_steps == STEPS
        make(tmp_path / "whole").train()
        assert digests(tmp_path / "runs") == digests(tmp_path / "whole")
        assert list((tmp_path / "elsewhere").iterdir()) == []

    @pytest.mark.parametrize("instance", [1, 2, 3, 4])
    def test_a_signal_before_it_leaves_nothing_or_a_run_that_goes_on(self, tmp_path: Path, instance: int) -> None:
        """The first instance is the trainer's example, those after it are the probe's, and the last is trained on."""

        def signalled() -> gymnasium.Env[Any, Any]:
            nonlocal count
            count += 1
            if count == instance:
                signal.raise_signal(signal.SIGTERM)
            return env_worlds.Path()

        count = 0
        interrupter = Interrupter()
        with interrupter.signals():
            if instance == 1:
                with pytest.raises(Interrupted, match=r"before the training began \(SIGTERM\)"):
                    make(tmp_path, env=signalled, interrupter=interrupter)
                assert list(tmp_path.iterdir()) == []
            else:
                report = make(tmp_path, env=signalled, interrupter=interrupter).train()
                assert (report.status, report.reason, report.env_steps) == ("stopped", "SIGTERM", 0)
        make(tmp_path, env=env_worlds.Path).train()
        make(tmp_path / "whole", env=env_worlds.Path).train()
        assert digests(tmp_path) == digests(tmp_path / "whole")
        assert rekindle.verify(tmp_path / "t").grade == "exact"

    @pytest.mark.parametrize("given", [True, False])
    def test_a_signal_while_the_agent_warms_up_stops_a_run_that_goes_on(self, tmp_path: Path, given: bool) -> None:
        class Warm(ToyAgent):
            def warm_up(self) -> None:
                if is_signalled:
                    signal.raise_signal(signal.SIGTERM)

        is_signalled = True
        options: dict[str, Any] = {"interrupter": Interrupter()} if given else {}
        report = make(tmp_path, agent=lambda *_: Warm(seed=1), **options).train()
        assert (report.status, report.reason, report.env_steps) == ("stopped", "SIGTERM", 0)
        is_signalled = False
        make(tmp_path, agent=lambda *_: Warm(seed=1)).train()
        make(tmp_path / "whole", agent=lambda *_: Warm(seed=1)).train()
        assert digests(tmp_path) == digests(tmp_path / "whole")
        assert rekindle.verify(tmp_path / "t").grade == "exact"

    def test_its_config_is_written_once(self, tmp_path: Path, seen: Path) -> None:
        make(tmp_path, agent="tabular", env="FrozenLake-v1").train()
        run = rekindle.RunReader(tmp_path / "t").path
        assert (run / "config.json").read_bytes() == (seen / run.relative_to(tmp_path) / "config.json").read_bytes()

    def test_everything_that_may_fail_or_take_long_comes_before_it(self, tmp_path: Path) -> None:
        def fragile() -> gymnasium.Env[Any, Any]:
            made.append(find_runs(tmp_path))
            return env_worlds.Path()

        made: list[list[Path]] = []
        make(tmp_path, env=fragile, eval_episodes=0).train()
        assert made
        assert not any(made)

    def test_one_that_another_process_has_begun_meanwhile_is_gone_on_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(TrainingRun, "resume_unfinished", lambda *_, **__: None)
        leave_at(make(tmp_path), 60)
        monkeypatch.undo()
        late = make(tmp_path)
        monkeypatch.setattr(late._opening, "find", lambda: None)
        assert late.train().env_steps == STEPS
        make(tmp_path / "whole").train()
        assert len(find_runs(tmp_path / "t")) == 1
        assert digests(tmp_path) == digests(tmp_path / "whole")


class TestPresets:
    def test_what_is_not_given_comes_from_the_preset(self) -> None:
        pytest.importorskip("jax")
        trainer = Trainer.from_preset("CartPole-v1", "ppo", steps=2_000, agent_settings={"epochs": 3})
        config = trainer.config
        assert (config.preset, config.steps, config.num_envs) == ("CartPole-v1", 2_000, 8)
        assert (config.agent["epochs"], config.agent["target_kl"]) == (3, 0.02)
        assert config.agent["learning_rate"] == {"start": 1e-3, "end": 0.0, "steps": 2_000}
        assert Trainer.from_preset("CartPole-v1", "ppo", num_envs=2).config.num_envs == 2
        assert Trainer.from_preset("CartPole-v1", "ppo").config.steps == 100_000

    def test_a_resume_remembers_the_preset(self, tmp_path: Path) -> None:
        pytest.importorskip("jax")
        options: dict[str, Any] = {"agent_settings": {"hidden_sizes": [4], "epochs": 1}, "eval_episodes": 0}
        Trainer.from_preset("CartPole-v1", "ppo", name="t", root=tmp_path, steps=16, **options).train()
        assert Trainer.resume(tmp_path / "t", steps=24).train().env_steps == 24
        assert rekindle.RunReader(tmp_path / "t").read_config()["preset"] == "CartPole-v1"

    def test_one_that_there_is_not_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match=r"no preset of dqn for Taxi-v3; those of dqn: CartPole-v1, "):
            Trainer.from_preset("Taxi-v3", "dqn")
        with pytest.raises(ConfigError, match="there is no algorithm 'DQN'; did you mean dqn"):
            Trainer.from_preset("CartPole-v1", "DQN")


class TestConfig:
    def test_the_config_holds_what_it_takes_to_resume_from_the_path_alone(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {
            "env": "FrozenLake-v1",
            "agent": "tabular",
            "agent_settings": {"gamma": 0.9, "epsilon_steps": 100},
            "num_envs": 2,
        }
        make(tmp_path / "whole", **options).train()
        leave_at(make(tmp_path / "cut", **options), 101)
        config = rekindle.RunReader(tmp_path / "cut" / "t").read_config()
        assert config["algorithm"] == "tabular"
        assert config["agent"]["gamma"] == 0.9
        assert config["env"]["id"] == "FrozenLake-v1"
        assert config["determinism"] == "repeats"
        trainer = Trainer.resume(tmp_path / "cut" / "t")
        assert isinstance(trainer.agent, Tabular)
        trainer.train()
        assert digests(tmp_path / "cut") == digests(tmp_path / "whole")

    def test_checkpoints_that_a_policy_keeps_outlive_a_resume_from_the_path(self, tmp_path: Path) -> None:
        policies = [rekindle.KeepLast(1), rekindle.KeepEvery(100)]
        options: dict[str, Any] = {"env": "FrozenLake-v1", "agent": "tabular", "keep_checkpoints": policies}
        make(tmp_path, **options).train()
        Trainer.resume(tmp_path / "t", steps=360).train()
        steps = list_steps(rekindle.RunReader(tmp_path / "t").path / "checkpoints")
        assert set(steps) >= {100, 200, 300, 360}

    def test_a_strict_resume_that_is_refused_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options: dict[str, Any] = {"env": "FrozenLake-v1", "agent": "tabular"}
        leave_at(make(tmp_path, **options), 60)
        before = rekindle.RunReader(tmp_path / "t").read_config()
        monkeypatch.setattr(restoring, "environment", lambda: {"numpy": "0.1"})
        with pytest.raises(CheckpointError, match="cannot be resumed exactly"):
            make(tmp_path, **options, strict=True, checkpoint_every=7).train()
        assert rekindle.RunReader(tmp_path / "t").read_config() == before

    def test_a_resume_may_set_another_end(self, tmp_path: Path) -> None:
        make(tmp_path, env="FrozenLake-v1", agent="tabular", steps=30).train()
        assert Trainer.resume(tmp_path / "t", steps=45).train().env_steps == 45

    @pytest.mark.parametrize("way", ["train", "name", "path"])
    def test_an_end_before_what_was_trained_is_refused_and_nothing_is_changed(self, tmp_path: Path, way: str) -> None:
        options: dict[str, Any] = {"env": "FrozenLake-v1", "agent": "tabular"}
        trainer = make(tmp_path, **options)
        leave_at(trainer, 130)
        run = rekindle.RunReader(tmp_path / "t").path
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}
        again: dict[str, Callable[[], object]] = {
            "train": lambda: trainer.train(steps=129),
            "name": lambda: make(tmp_path, **options, steps=129).train(),
            "path": lambda: Trainer.resume(run, steps=129).train(),
        }
        with pytest.raises(
            ConfigError, match=rf"{run} has trained 130 env steps already, and steps is 129: use at least"
        ):
            again[way]()
        after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}
        assert after == before
        assert Trainer.resume(run, steps=130).train().status == "finished"
        assert trainer.train().env_steps == STEPS

    def test_counts_may_be_integers_of_numpy(self, tmp_path: Path) -> None:
        plain: dict[str, Any] = {
            "env": "FrozenLake-v1",
            "agent": "tabular",
            "steps": 60,
            "seed": 5,
            "num_envs": 2,
            "checkpoint_every": 20,
            "keep_checkpoints": 2,
            "eval_episodes": 2,
        }
        counts = {name: np.int64(value) if isinstance(value, int) else value for name, value in plain.items()}
        numbers: dict[str, Any] = {"target_score": 2.5, "time_limit": 500.0}
        make(tmp_path / "plain", **plain, **numbers, agent_settings={"epsilon_steps": 8, "gamma": 0.5}).train()
        numbers = {name: np.float64(value) for name, value in numbers.items()}
        settings = {"epsilon_steps": np.int64(8), "gamma": np.float32(0.5)}
        trainer = make(tmp_path / "numpy", **counts, **numbers, agent_settings=settings)
        trainer.train()
        assert digests(tmp_path / "numpy") == digests(tmp_path / "plain")
        configs = [rekindle.RunReader(tmp_path / kind / "t").read_config() for kind in ("numpy", "plain")]
        assert configs[0] == configs[1]
        assert trainer.eval(episodes=np.int64(2)).n_episodes == 2  # pyright: ignore[reportArgumentType]
        assert trainer.train(steps=np.int64(70)).env_steps == 70  # pyright: ignore[reportArgumentType]

    def test_modules_that_only_the_run_names_are_not_imported(self, tmp_path: Path) -> None:
        make(tmp_path, env=env_worlds.Path, agent=toy).train()
        with pytest.raises(ConfigError, match=r"names the module env_worlds.*--env-module env_worlds"):
            Trainer.resume(tmp_path / "t", steps=300)
        with pytest.raises(ConfigError, match="only its script defines its agent: pass one as agent"):
            Trainer.resume(tmp_path / "t", modules=["env_worlds"], steps=300)
        resumed = Trainer.resume(tmp_path / "t", modules=["env_worlds"], agent=toy, steps=300)
        assert resumed.train().env_steps == 300

    def test_a_lambda_must_be_given_again(self, tmp_path: Path) -> None:
        make(tmp_path, env=lambda: env_worlds.Path(limit=8)).train()
        with pytest.raises(ConfigError, match="trained on a function that only its script defines: pass it as env"):
            Trainer.resume(tmp_path / "t", agent=toy)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"env": "CliffWalking-v1"}, r'env was \{.*"FrozenLake-v1".*and is \{.*"CliffWalking-v1"'),
            ({"agent_settings": {"gamma": 0.5}}, r"agent.gamma was 0.99 and is 0.5"),
            ({"num_envs": 2}, r"num_envs was 1 and is 2"),
            ({"seed": 6}, r"seed was 5 and is 6"),
        ],
    )
    def test_another_training_is_not_continued_under_the_same_name(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        options: dict[str, Any] = {"env": "FrozenLake-v1", "agent": "tabular"}
        leave_at(make(tmp_path, **options), 60)
        before = digests(tmp_path)
        with pytest.raises(ConfigError, match=f"is another training: {message}.*or another name"):
            make(tmp_path, **{**options, **changes}).train()
        assert digests(tmp_path) == before
        leave_at(make(tmp_path, **options, checkpoint_every=20), 80)
        assert rekindle.RunReader(tmp_path / "t").read_config()["checkpoint_every"] == 20

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"agent": "dqm", "env": "CartPole-v1"}, "no algorithm 'dqm'; did you mean dqn?"),
            ({"agent": "xyz", "env": "CartPole-v1"}, "no algorithm 'xyz'; use one of dqn"),
            ({"agent": "tabular", "env": "Pendulum-v1"}, "tabular takes Discrete actions.* are Box; "),
            (
                {"agent": "tabular", "env": "FrozenLake-v1", "agent_settings": {"gama": 1}},
                "no setting 'gama'; did you mean gamma",
            ),
            ({"agent": "tabular", "env": "FrozenLake-v1", "agent_settings": {"gamma": 7}}, "gamma is 7"),
            ({"env": "CartPol-v1"}, "Did you mean: `CartPole`"),
            ({"agent_settings": {"gamma": 1}}, "agent_settings are for an agent that is given by name"),
            ({"steps": -1}, "steps is -1: use a whole number of at least 0"),
            ({"num_envs": 0}, "num_envs is 0"),
            ({"eval_episodes": -1}, "eval_episodes is -1"),
            ({"time_limit": 0}, "time_limit is 0"),
            ({"target_score": math.nan}, "target_score is nan"),
            ({"target_score": math.inf}, "target_score is inf"),
            ({"vectorization": "threads"}, "vectorization is 'threads': use one of 'sync', 'async', 'native'"),
            ({"record": "wandb"}, r"record is 'wandb': use a list, such as \['wandb'\]"),
            ({"extras": "is_success"}, "extras is 'is_success': use a list"),
            ({"colour": 1}, "a trainer has no setting colour; there are seed, steps, num_envs"),
        ],
    )
    def test_wrong_settings_are_refused_before_anything_is_written(
        self, tmp_path: Path, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            make(tmp_path, **options)
        assert list(tmp_path.iterdir()) == []

    def test_a_network_that_only_the_run_names_is_not_imported(self, tmp_path: Path) -> None:
        make(tmp_path, env="FrozenLake-v1", agent="tabular").train()
        path = rekindle.RunReader(tmp_path / "t").path / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "algorithm": "dqn", "agent": {"network": "os:system"}}))
        with pytest.raises(ConfigError, match="names the module os, which is imported only if"):
            Trainer.resume(tmp_path / "t")

    def test_all_modules_that_only_the_run_names_are_in_one_message(self, tmp_path: Path) -> None:
        make(tmp_path, env=env_worlds.Path, agent=toy).train()
        path = rekindle.RunReader(tmp_path / "t").path / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "algorithm": "dqn", "agent": {"network": "mine:Wide"}}))
        with pytest.raises(ConfigError, match="too: --env-module env_worlds --agent-module mine, or modules="):
            Trainer.resume(tmp_path / "t")

    def test_a_directory_without_a_config_cannot_be_resumed_by_its_path(self, tmp_path: Path) -> None:
        rekindle.TrainingRun.create("plain", root=tmp_path).close()
        with pytest.raises(ConfigError, match=r"has no config\.json: only its own script can continue it"):
            Trainer.resume(tmp_path / "plain")

    def test_an_evaluation_before_the_training_finds_out_too(self, tmp_path: Path) -> None:
        make(tmp_path / "plain", env=env_worlds.Leaky).train()
        trainer = make(tmp_path / "looked", env=env_worlds.Leaky)
        assert trainer.eval(3) == make(tmp_path / "other", env=env_worlds.Leaky).eval(3)
        trainer.train()
        assert digests(tmp_path / "looked") == digests(tmp_path / "plain")

    def test_what_repeats_an_episode_is_found_out_in_few_steps(self, tmp_path: Path) -> None:
        counted = env_worlds.Counted
        for probe_steps in (60, 600):
            counted.instances = counted.steps_in_all = 0
            make(tmp_path, env=counted, steps=1, eval_episodes=0, probe_steps=probe_steps, new=True).train()
            assert counted.instances <= 3 + 2  # one to know the spaces, one to train on
            assert counted.steps_in_all <= probe_steps + 1

    def test_what_repeats_an_episode_is_found_out_once(self, tmp_path: Path) -> None:
        leave_at(make(tmp_path, env=env_worlds.Leaky), 20)
        trainer = make(tmp_path, env=env_worlds.Leaky)
        leave_at(trainer, 40)
        assert trainer.config.determinism is Determinism.LEAKS


class TestFailures:
    @pytest.mark.parametrize("num_envs", [1, 2])
    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ("raises", r"ZeroDivisionError: by nothing \(env_worlds.py:\d+\)"),
            ("nan", "not finite"),
            ("reward", "not finite"),
            ("shape", r"the shape \(1,\), expected \(2,\)"),
        ],
    )
    def test_an_environment_that_fails_is_named_and_nothing_is_lost(
        self, tmp_path: Path, how: str, message: str, num_envs: int
    ) -> None:
        options: dict[str, Any] = {
            "env": lambda: env_worlds.Broken(how=how),
            "num_envs": num_envs,
            "determinism": Determinism.REPEATS,
            "eval_episodes": 0,
        }
        step = 3 * num_envs
        with pytest.raises(EnvError, match=rf"lambda.*{message}.*\(env step {step}\)"):
            make(tmp_path, **options).train()
        reader = rekindle.RunReader(tmp_path / "t")
        assert reader.status == "failed"
        assert reader.metadata.total_steps == step
        assert "EnvError" in str(reader.metadata.stop_reason)
        leave_at(make(tmp_path, **{**options, "env": lambda: env_worlds.Broken(how="mended")}), step + 5 * num_envs)
        assert [resume.grade for resume in reader.metadata.resumes] == ["exact"]

    def test_a_worker_that_dies_is_named_and_nothing_is_lost(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {
            "num_envs": 2,
            "vectorization": "async",
            "workers": 2,
            "determinism": Determinism.REPEATS,
            "eval_episodes": 0,
        }
        with pytest.raises(EnvError, match=r"the worker process of env 0 was killed by signal 9 \(env step 6\)"):
            make(tmp_path, env=lambda: env_worlds.Broken(how="dies"), **options).train()
        leave_at(make(tmp_path, env=lambda: env_worlds.Broken(how="mended"), **options), 20)
        (resume,) = rekindle.RunReader(tmp_path / "t").metadata.resumes
        assert (resume.step, resume.grade) == (6, "exact")

    def test_an_evaluation_that_fails_at_the_end_loses_no_training(self, tmp_path: Path) -> None:
        class Failing:
            def evaluate(self, act: Any, episodes: int) -> Evaluation:
                raise EnvError("not today")

            def close(self) -> None: ...

        with pytest.raises(EnvError, match="not today"):
            make(tmp_path, evaluator=Failing(), eval_every=None).train()
        reader = rekindle.RunReader(tmp_path / "t")
        assert (reader.status, reader.metadata.total_steps) == ("failed", STEPS)
        make(tmp_path, eval_every=None).train()
        make(tmp_path / "whole", eval_every=None).train()
        assert digests(tmp_path) == digests(tmp_path / "whole")

    def test_a_run_that_another_process_writes_is_left_alone(self, tmp_path: Path) -> None:
        leave_at(make(tmp_path), 20)
        run = rekindle.TrainingRun.resume(tmp_path / "t")
        with pytest.raises(RekindleError, match="is being written by process"):
            make(tmp_path).train()
        run.close()


def test_the_agent_may_be_an_instance(tmp_path: Path) -> None:
    lake = gymnasium.make("FrozenLake-v1")
    agent = Tabular(lake.observation_space, lake.action_space, seed=3, gamma=0.9)
    trainer = make(tmp_path, env="FrozenLake-v1", agent=agent)
    trainer.train()
    assert trainer.agent is agent
    assert agent.env_steps == STEPS
    config = rekindle.RunReader(tmp_path / "t").read_config()
    assert (config["algorithm"], config["agent"]["gamma"]) == ("tabular", 0.9)
    assert np.isfinite(trainer.eval(2).stats["episode_reward_mean"])
