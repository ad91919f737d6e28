"""`rekindle train`, `resume`, `eval`, `export` and `algos`: from a command to a trained agent."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle import RunReader, TrainingRun, verify
from rekindle.checkpoint.store import list_steps
from rekindle.policy import policy
from rekindle.run.finding import find_runs
from rekindle.training import ALGORITHMS, Trainer
from rekindle.training.progress import Progress

Rekindle = Callable[..., Any]
LAKE = ("train", "tabular", "FrozenLake-v1", "--eval-every", 200, "--eval-episodes", 2, "--checkpoint-every", 100)
WITHOUT_WARNING = ("--agent.epsilon-steps", "100%")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config_of(path: str) -> dict[str, Any]:
    return RunReader(path).read_config()


class TestTrain:
    def test_it_trains_and_prints_a_report(self, rekindle: Rekindle) -> None:
        outcome = rekindle(*LAKE, "--steps", 500, "--seed", 3, "--agent.gamma", 0.9)
        assert outcome.code == 0
        assert "finished (max_steps): 500 steps" in outcome.flat
        assert "episode/return" in outcome.out
        assert "step 500 of 500 (100 %)" in outcome.err
        config = config_of("runs/tabular-FrozenLake-v1")
        assert (config["seed"], config["steps"], config["agent"]["gamma"]) == (3, 500, 0.9)

    def test_json_goes_to_standard_output_alone(self, rekindle: Rekindle) -> None:
        outcome = rekindle(
            *LAKE, *WITHOUT_WARNING, "--steps", 300, "--json", "--ui", "none", "--name", "lake", "--version", "v2"
        )
        assert outcome.err == ""
        assert outcome.json["env_steps"] == 300
        assert outcome.json["path"].startswith("runs/lake/v2/")

    def test_settings_of_the_environment_arrive(self, rekindle: Rekindle) -> None:
        arguments = ("--env.arguments", "is_slippery", "false", "map_name", "4x4", "--env.max-episode-steps", 7)
        assert rekindle(*LAKE, "--steps", 50, *arguments, "--num-envs", 2).code == 0
        config = config_of("runs/tabular-FrozenLake-v1")
        assert config["env"]["arguments"] == {"is_slippery": False, "map_name": "4x4"}
        assert config["env"]["max_episode_steps"] == 7
        assert config["num_envs"] == 2

    def test_each_command_begins_a_run_unless_told_to_resume(self, rekindle: Rekindle) -> None:
        trainer = Trainer("FrozenLake-v1", "tabular", name="lake", steps=100, eval_episodes=2)
        next(iter(trainer.steps()))
        assert rekindle(*LAKE, "--name", "lake", "--steps", 120, "--eval-every", 99, "--resume", "auto").code == 0
        (run,) = find_runs("runs/lake/v1")
        assert RunReader(run).metadata.total_steps == 120
        assert rekindle(*LAKE, "--name", "lake", "--steps", 50).code == 0
        assert len(find_runs("runs/lake/v1")) == 2

    def test_a_percentage_is_one_of_the_training(self, rekindle: Rekindle) -> None:
        pytest.importorskip("jax")
        options = ("--agent.learning-rate", "1e-3:0:50%", "--agent.warmup-steps=25%", "--agent.epsilon-steps", 0.75)
        small = ("--agent.hidden-sizes", 8, "--eval-episodes", 1, "--preset", "none", "--name", "s")
        outcome = rekindle("train", "dqn", "CartPole-v1", "--steps", 40, *options, *small)
        assert outcome.code == 0
        agent = RunReader(find_runs("runs/s")[0]).read_config()["agent"]
        assert agent["learning_rate"] == {"start": 1e-3, "end": 0.0, "steps": 20}
        assert (agent["warmup_steps"], agent["epsilon_steps"]) == (10, 30)

    @pytest.mark.parametrize("word", ["half", "1:2", "1:2:3:4", "1:2:150%"])
    def test_what_is_no_schedule_is_refused(self, rekindle: Rekindle, word: str) -> None:
        assert rekindle("train", "dqn", "CartPole-v1", "--agent.learning-rate", word).code == 2
        assert rekindle("train", "dqn", "CartPole-v1", "--agent.warmup-steps", word).code == 2

    def test_a_training_that_learns_nothing_is_told(self, rekindle: Rekindle) -> None:
        small = ("--agent.hidden-sizes", 8, "--eval-episodes", 0, "--preset", "none")
        outcome = rekindle("train", "dqn", "CartPole-v1", "--steps", 20, *small)
        assert "warmup_steps is 10000, and the training makes 20 env steps: too few for an update" in outcome.err

    def test_a_schedule_is_one_word(self, rekindle: Rekindle) -> None:
        pytest.importorskip("jax")
        options = ("--agent.learning-rate", "1e-3:1e-4:50", "--agent.warmup-steps", 30, "--agent.hidden-sizes", 8)
        outcome = rekindle("train", "dqn", "CartPole-v1", "--steps", 20, "--eval-episodes", 1, *options)
        assert outcome.code == 0
        agent = config_of("runs/dqn-CartPole-v1")["agent"]
        assert agent["learning_rate"] == {"start": 0.001, "end": 0.0001, "steps": 50}
        assert agent["hidden_sizes"] == [8]
        outcome = rekindle("export", "runs/dqn-CartPole-v1", "-o", "policy.mpk", "--json")
        assert outcome.json == {"file": "policy.mpk", "algorithm": "dqn", "step": 20}
        assert policy.load("policy.mpk").algorithm == "dqn"
        pytest.importorskip("onnx")
        outcome = rekindle("export", "runs/dqn-CartPole-v1", "-o", "policy.onnx")
        assert outcome.out == "policy.onnx: the policy of step 20; run it with any ONNX runtime\n"
        assert Path("policy.onnx").stat().st_size > 0

    def test_a_preset_that_fits_is_used_and_flags_come_first(self, rekindle: Rekindle) -> None:
        pytest.importorskip("jax")
        tiny = ("--agent.hidden-sizes", 8, "--eval-episodes", 0, "--agent.update-every", 10_000)
        outcome = rekindle("train", "dqn", "--steps", 40, "CartPole-v1", *tiny, "--num-envs=2")
        assert outcome.code == 0
        assert "using the preset CartPole-v1 of dqn; --preset none turns it off" in outcome.err
        config = config_of("runs/dqn-CartPole-v1")
        assert (config["preset"], config["steps"], config["num_envs"]) == ("CartPole-v1", 40, 2)
        agent = config["agent"]
        assert (agent["n_step"], agent["hidden_sizes"], agent["update_every"]) == (3, [8], 10_000)
        assert agent["learning_rate"] == {"start": 1e-3, "end": 0.0, "steps": 40}
        outcome = rekindle("train", "dqn", "CartPole-v1", *tiny, "--steps", 40, "--preset", "none", "--name", "none")
        assert "preset" not in outcome.err
        config = config_of("runs/none")
        assert (config["preset"], config["agent"]["n_step"]) == (None, 1)

    def test_the_help_shows_what_the_preset_says(self, rekindle: Rekindle) -> None:
        pytest.importorskip("jax")
        assert "(default: 50000)" in rekindle("train", "dqn", "CartPole-v1", "--help").out
        assert "(default: 100000)" in rekindle("train", "dqn", "CartPole-v1", "--preset", "none", "--help").out

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (("dqm", "CartPole-v1"), 2, "there is no algorithm 'dqm'; did you mean dqn?"),
            (("tabular", "FrozenLak-v1"), 2, "Did you mean: `FrozenLake`"),
            (("tabular", "Pendulum-v1"), 2, "tabular takes Discrete actions"),
            (("tabular", "FrozenLake-v1", "--agent.gamma", "7"), 2, "gamma is 7.0: use a number from 0 to 1"),
            (("tabular", "FrozenLake-v1", "--agent.gama", "1"), 2, "Perhaps you meant"),
            (("tabular", "FrozenLake-v1", "--steps", "-3"), 2, "steps is -3"),
            (("tabular", "FrozenLake-v1", "--name", "../x"), 2, "name '../x' cannot be a directory"),
            (("tabular",), 2, "ENV"),
        ],
    )
    def test_wrong_usage_is_told_without_a_traceback_or_a_run(
        self, rekindle: Rekindle, arguments: tuple[str, ...], code: int, message: str, here: Path
    ) -> None:
        outcome = rekindle("train", *arguments)
        assert (outcome.code, outcome.out) == (code, "")
        assert message in " ".join(outcome.err.replace("│", " ").split())
        assert "Traceback" not in outcome.err
        assert list(here.iterdir()) == []

    def test_the_help_shows_the_settings_of_the_algorithm(self, rekindle: Rekindle) -> None:
        assert "--agent.gamma" in rekindle("train", "tabular", "FrozenLake-v1", "--help").out
        assert "--agent.gamma" in rekindle("train", "--steps", 5, "tabular", "FrozenLake-v1", "--help").out
        assert "--agent.gamma" not in rekindle("train", "--help").out

    def test_the_help_of_a_setting_has_no_line_breaks_of_its_source(
        self, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "400")
        shown = rekindle("train", "tabular", "FrozenLake-v1", "--help").out
        assert "None for about 64, so that rounds fill a rollout. (default: None)" in shown


class TestResume:
    def test_a_run_goes_on_from_its_path(self, rekindle: Rekindle) -> None:
        rekindle(*LAKE, "--steps", 300, "--name", "cut")
        outcome = rekindle("resume", "runs/cut", "--steps", 500)
        assert outcome.code == 0
        assert "continues at step 300" in outcome.err
        assert ", exact" in outcome.flat
        rekindle(*LAKE, "--steps", 500, "--name", "whole")
        assert verify("runs/cut").digests == verify("runs/whole").digests

    def test_a_name_means_its_newest_run_that_has_not_finished(self, rekindle: Rekindle) -> None:
        options = ("--name", "lake", "--steps", 60, "--ui", "none")
        assert rekindle(*LAKE, *options, "--seeds", "0-1").code == 0
        next(iter(Trainer("FrozenLake-v1", "tabular", name="lake", steps=60, eval_episodes=2).steps()))
        outcome = rekindle("resume", "runs/lake", "--json", "--ui", "none")
        assert (outcome.code, Path(outcome.json["path"]).parent.name) == (0, "v1")
        assert [len(RunReader(f"runs/lake/v1-seed{seed}").metadata.resumes) for seed in (0, 1)] == [0, 0]
        assert rekindle("show", "runs/lake", "--json").json["summary"]["version"] == "v1"

    def test_an_end_before_what_was_trained_is_wrong_usage(self, rekindle: Rekindle) -> None:
        assert rekindle(*LAKE, "--steps", 60, "--name", "lake", "--ui", "none").code == 0
        before = config_of("runs/lake")
        outcome = rekindle("resume", "runs/lake", "--steps", 40)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert "has trained 60 env steps already, and steps is 40: use at least 60" in outcome.err
        assert config_of("runs/lake") == before
        assert RunReader("runs/lake").status == "finished"

    def test_modules_must_be_named_again(self, rekindle: Rekindle, here: Path) -> None:
        (here / "own_lake.py").write_text("import gymnasium\ndef make():\n    return gymnasium.make('FrozenLake-v1')\n")
        assert rekindle("train", "tabular", "own_lake:make", "--steps", 30, "--name", "own").code == 0
        outcome = rekindle("resume", "runs/own", "--steps", 40)
        assert outcome.code == 2
        assert "names the module own_lake, which is imported only if you name it too" in outcome.err
        assert rekindle("resume", "runs/own", "--steps", 40, "--env-module", "own_lake").code == 0

    def test_a_run_of_a_script_is_left_to_it(self, rekindle: Rekindle) -> None:
        TrainingRun.create("plain").close()
        outcome = rekindle("resume", "runs/plain")
        assert (outcome.code, outcome.out) == (2, "")
        assert "has no config.json: only its own script can continue it; if a rekindle train" in outcome.err


class TestEval:
    @pytest.fixture(autouse=True)
    def lake(self, rekindle: Rekindle) -> None:
        rekindle(*LAKE, "--steps", 300, "--ui", "none")

    @pytest.mark.parametrize(
        ("checkpoint", "steps"), [("best", [200]), ("latest", [300]), ("200", [200]), ("all", [100, 200, 300])]
    )
    def test_agents_of_a_run_are_evaluated(self, rekindle: Rekindle, checkpoint: str, steps: list[int]) -> None:
        outcome = rekindle("eval", "runs/tabular-FrozenLake-v1", "--checkpoint", checkpoint, "--episodes", 3, "--json")
        assert [report["total_steps"] for report in outcome.json] == steps
        assert {report["n_episodes"] for report in outcome.json} == {3}

    def test_the_episodes_are_others_than_those_that_chose_the_best(self, rekindle: Rekindle) -> None:
        path = "runs/tabular-FrozenLake-v1"
        command = ("eval", path, "--checkpoint", "latest", "--episodes", 2, "--json")
        (known,) = rekindle(*command, "--seed", RunReader(path).metadata.seed).json
        final = [row for row in RunReader(path).eval_episodes() if row.get("final")]
        assert known["stats"]["episode_length_mean"] == sum(row["length"] for row in final) / 2
        (report,) = rekindle(*command).json
        assert report == rekindle(*command).json[0]
        (other,) = rekindle(*command, "--seed", 9).json
        assert report["stats"] not in (known["stats"], other["stats"])

    def test_a_table_is_for_people(self, rekindle: Rekindle) -> None:
        outcome = rekindle("eval", "runs/tabular-FrozenLake-v1", "--episodes", 2)
        assert outcome.code == 0
        assert "terminated" in outcome.out

    @pytest.mark.parametrize(("checkpoint", "code"), [("7", 1), ("worst", 2)])
    def test_a_checkpoint_that_is_not_there_is_named(self, rekindle: Rekindle, checkpoint: str, code: int) -> None:
        outcome = rekindle("eval", "runs/tabular-FrozenLake-v1", "--checkpoint", checkpoint)
        assert outcome.code == code
        assert checkpoint in outcome.err

    def test_episodes_are_filmed(self, rekindle: Rekindle, here: Path) -> None:
        images = pytest.importorskip("PIL.Image")
        pytest.importorskip("pygame")
        rekindle("train", "tabular", "CliffWalking-v1", "--steps", 200, "--env.max-episode-steps", 9, "--name", "cliff")
        outcome = rekindle("eval", "runs/cliff", "--episodes", 2, "--video", "films/here")
        assert outcome.code == 0
        files = sorted((here / "films/here").iterdir())
        assert [file.name for file in files] == ["step_200-episode_0.gif", "step_200-episode_1.gif"]
        assert all(file.name in outcome.out for file in files)
        with images.open(files[0]) as film:
            assert film.format == "GIF"
            assert film.size == (768, 256)
            film.seek(0)
            assert len(film.convert("RGB").getcolors(10_000)) > 5, "something is to be seen"

    def test_what_cannot_be_filmed_is_told(self, rekindle: Rekindle, here: Path) -> None:
        pytest.importorskip("PIL.Image")
        (here / "dark.py").write_text("import gymnasium\ndef make(**_):\n    return gymnasium.make('FrozenLake-v1')\n")
        rekindle("train", "tabular", "dark:make", "--steps", 50, "--name", "dark")
        outcome = rekindle("eval", "runs/dark", "--video", "films", "--env-module", "dark")
        assert outcome.code == 2
        assert "dark:make cannot be recorded: it has no render_mode rgb_array" in outcome.err

    def test_a_table_has_no_policy_to_export(self, rekindle: Rekindle, here: Path) -> None:
        outcome = rekindle("export", "runs/tabular-FrozenLake-v1", "-o", "policy.mpk")
        assert outcome.code == 2
        assert "a TabularPolicy cannot be exported: only networks of known layers can" in outcome.err
        assert not (here / "policy.mpk").exists()


class TestAlgos:
    def test_every_algorithm_is_listed(self, rekindle: Rekindle) -> None:
        assert all(name in rekindle("algos").out for name in ALGORITHMS)
        listed = rekindle("algos", "--json").json["dqn"]
        assert listed["actions"] == ["Discrete"]
        assert listed["presets"]["CartPole-v1"]["steps"] == 50_000

    def test_presets_are_shown_with_their_settings(self, rekindle: Rekindle) -> None:
        pytest.importorskip("jax")
        shown = rekindle("algos", "sac").flat
        assert "Preset mujoco Ant-*, HalfCheetah-*" in shown
        assert "steps 1000000" in shown

    def test_every_setting_is_shown_with_its_default_and_explained(self, rekindle: Rekindle) -> None:
        settings = rekindle("algos", "tabular", "--json").json
        assert settings["gamma"]["default"] == 0.99
        assert all(setting["help"] for setting in settings.values())
        assert "Discount factor, from 0 to 1" in rekindle("algos", "tabular").flat

    def test_settings_that_several_algorithms_share_are_explained_too(self, rekindle: Rekindle) -> None:
        pytest.importorskip("jax")
        settings = rekindle("algos", "sac", "--json").json
        assert all(setting["help"] for setting in settings.values())
        assert "actions are uniform" in settings["warmup_steps"]["help"], "its own, not that of the base"


class TestProgress:
    @pytest.mark.parametrize("is_terminal", [False, True])
    def test_one_line_changes_on_a_terminal_and_lines_follow_elsewhere(self, is_terminal: bool) -> None:
        class Screen(io.StringIO):
            def isatty(self) -> bool:
                return is_terminal

        screen = Screen()
        trainer = Trainer("FrozenLake-v1", "tabular", steps=300, metrics_every=100, eval_every=100, eval_episodes=1)
        progress = Progress(trainer, screen)
        trainer.train()
        progress.clear()
        written = screen.getvalue()
        assert "step 300 of 300 (100 %)" in written
        assert "evaluation" in written
        assert ("\n" in written, "\x1b[K" in written) == (not is_terminal, is_terminal)


@pytest.mark.parametrize("ui", ["plain", "none"])
def test_a_warning_is_told_once(rekindle: Rekindle, here: Path, ui: str) -> None:
    options = (*WITHOUT_WARNING, "--name", "moody", "--ui", ui)
    outcome = rekindle(*LAKE, *options, "--determinism", "random", "--steps", 97)
    assert outcome.code == 0
    assert "rekindle: FrozenLake-v1 does not repeat an episode from the same seed and actions: if this" in outcome.err
    outcome = rekindle("resume", "runs/moody", "--steps", 150, "--ui", ui)
    (line,) = [line for line in outcome.err.splitlines() if "does not repeat an episode" in line]
    assert line.startswith("rekindle: FrozenLake-v1 ")
    assert RunReader(here / "runs/moody").warnings()[-1]["message"] == line.removeprefix("rekindle: ")


class TestRootThatIsNotUtf8:
    """The bytes of a directory may be anything; only `/` and NUL are refused by the file system."""

    @pytest.fixture
    def root(self, here: Path) -> Path:
        return here / os.fsdecode(b"r\xff")

    def test_its_runs_are_trained_resumed_and_looked_at(self, rekindle: Rekindle, root: Path) -> None:
        options = (*WITHOUT_WARNING, "--runs", root, "--name", "lake", "--ui", "none", "--json")
        outcome = rekindle(*LAKE, *options, "--steps", 60)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.json["path"].startswith(r"r\xff/lake/v1/")
        run = RunReader(root / "lake").path
        for file in (run / "checkpoints").iterdir():
            file.unlink()  # so that the resume tells where it has moved the rows
        assert rekindle("resume", root / "lake", "--steps", 90, "--ui", "none", "--json").code == 0
        assert any(r"r\udcff" in note for note in RunReader(run).metadata.resumes[0].lost)
        for command in ("show", "verify", "compare", "eval"):
            outcome = rekindle(command, run, "--json")
            assert (outcome.code, outcome.err) == (0, "")
            assert outcome.json
            assert rekindle(command, run).code == 0
        assert rekindle("runs", root, "--json").json[0]["path"].startswith(str(root).replace("\udcff", r"\xff"))
        assert rekindle("stop", run, "--json").json["asked"] is False
        assert rekindle("report", run, "-o", "report.html").code == 0

    def test_its_runs_may_be_parents(self, rekindle: Rekindle, root: Path) -> None:
        options = ("--runs", root, "--ui", "none", "--json", "--steps", 60)
        assert rekindle(*LAKE, *options, "--name", "parent").code == 0
        assert rekindle(*LAKE, *options, "--name", "child", "--from", f"{root}/parent@best").code == 0
        child = RunReader(root / "child")
        for file in (child.path / "checkpoints").iterdir():
            file.unlink()
        before = child.metadata.parent
        assert before is not None
        assert before.startswith("file:///")
        assert rekindle("resume", root / "child", "--ui", "none", "--json").code == 0
        assert child.metadata.parent == before

    def test_what_goes_wrong_there_is_logged(self, root: Path) -> None:
        run = TrainingRun.create("a", root=root)
        run.log_warning(f"cannot write {run.path}", {"env_steps": 1})
        run.update_metadata(status="failed", stop_reason=f"StorageError: cannot write {run.path}")
        run.close()
        reader = RunReader(root / "a")
        assert r"r\udcff/a/v1" in reader.warnings()[0]["message"]
        assert r"r\udcff/a/v1" in (reader.metadata.stop_reason or "")

    def test_a_setting_that_is_not_utf8_is_refused(self, rekindle: Rekindle, here: Path) -> None:
        outcome = rekindle(*LAKE, "--env.arguments", "map_name", os.fsdecode(b"\xff"))
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert list(here.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_first_signal_checkpoints_and_stops(here: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "rekindle", *map(str, LAKE), "--steps", "None", "--metrics-every", "100"]
    process = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.startswith("step ") for line in process.stderr)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"stopped ({number.name})" in out
    reader = RunReader(here / "runs/tabular-FrozenLake-v1")
    assert reader.status == "stopped"
    assert out.endswith(f"\n\ncontinue with: rekindle resume {reader.path.relative_to(here)}\n")


def test_the_command_that_continues_a_run_names_all_of_its_modules(rekindle: Rekindle, here: Path) -> None:
    (here / "first_lake.py").write_text("import gymnasium\ndef make():\n    return gymnasium.make('FrozenLake-v1')\n")
    (here / "second_lake.py").write_text("")
    common = ("--env-module", "second_lake", "first_lake", "--eval-episodes", 0, "--ui", "none")
    out = rekindle("train", "tabular", "first_lake:make", *common, "--steps", "None", "--time-limit", 0.5).out
    command = shlex.split(out.splitlines()[-1].removeprefix("continue with: "))
    assert command[-3:] == ["--env-module", "second_lake", "first_lake"]
    steps = list_steps(RunReader(command[2]).path / "checkpoints")[-1]
    assert rekindle(*command[1:], "--steps", steps + 10, "--ui", "none").code == 0
    outcome = rekindle("resume", *command[2:3], "--ui", "none")
    assert "too: --env-module second_lake first_lake, or modules=" in outcome.err
