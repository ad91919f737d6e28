"""`rekindle compare` puts runs side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import evaluate, make_run, open_session, play_episode

from rekindle import TrainingRun

Rekindle = Callable[..., Any]


def test_it_has_the_measures_of_each_run(tmp_path: Path, rekindle: Rekindle) -> None:
    with open_session(TrainingRun.create("a", root=tmp_path)) as session:
        play_episode(session)
        evaluate(session, 4.0, 8.0)
        session.stop("enough", complete=True)
    make_run(tmp_path, "b", episodes=3, reward=2.0)
    compared = rekindle("compare", tmp_path / "a", tmp_path / "b", "--json").json["runs"]
    assert [run["summary"]["steps"] for run in compared] == [5, 15]
    assert [run["summary"]["mean_return"] for run in compared] == [5.0, 10.0]
    assert [run["best_evaluation"] and run["best_evaluation"]["value"] for run in compared] == [6.0, None]
    assert all(run["summary"]["wall_time"] >= 0 for run in compared)
    table = rekindle("compare", tmp_path / "a", tmp_path / "b").flat
    for row in ("status finished finished", "steps 5 15", "return, last 100 5.00 10.00", "best evaluation 6.00 -"):
        assert row in table


def test_only_the_settings_that_differ_are_shown(tmp_path: Path, rekindle: Rekindle) -> None:
    make_run(tmp_path, "a", agent={"rate": 0.1, "depth": 2})
    make_run(tmp_path, "b", agent={"rate": 0.2, "depth": 2}, clip=True)
    compared = rekindle("compare", tmp_path / "a", tmp_path / "b", "--json").json
    assert compared["differing_settings"] == ["agent.rate", "clip"]
    table = rekindle("compare", tmp_path / "a", tmp_path / "b").flat
    assert "agent.rate 0.1 0.2 clip - true" in table
    assert "depth" not in table


def test_equal_runs_have_equal_digests_and_others_have_not(tmp_path: Path, rekindle: Rekindle) -> None:
    first, same, other = make_run(tmp_path, "a"), make_run(tmp_path, "b"), make_run(tmp_path, "c", reward=2.0)
    everything, nothing = (dict.fromkeys(("weights", "state", "logs"), value) for value in (True, False))
    assert rekindle("compare", first, same, "--digests", "--json").json["equal"] == everything
    assert rekindle("compare", first, same, other, "--digests", "--json").json["equal"] == nothing
    assert "Equal to the bit: weights yes, state yes, logs yes" in rekindle("compare", first, same, "--digests").flat
    assert rekindle("compare", first, same, "--json").json["equal"] is None


def test_what_cannot_be_digested_equals_nothing(tmp_path: Path, rekindle: Rekindle) -> None:
    first, second = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    for path in (first, second):
        for file in (path / "checkpoints").iterdir():
            file.write_bytes(b"{")
        (path / "train_episodes.jsonl").write_bytes(b"{\n")
    compared = rekindle("compare", first, second, "--digests", "--json").json
    assert set(compared["equal"].values()) == {False}


def test_unreadable_metadata_are_a_problem_of_their_run(tmp_path: Path, rekindle: Rekindle) -> None:
    first, second = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    (first / "metadata.json").write_bytes(b"{")
    compared = rekindle("compare", first, second, "--json").json
    assert [len(run["problems"]) for run in compared["runs"]] == [1, 0]


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_more_runs_than_fit_go_into_further_tables(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    paths = [make_run(tmp_path, f"run-number-{number}") for number in range(9)]
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = rekindle("compare", *paths)
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= columns
    assert all(f"run-number-{number}/v1/" in outcome.out for number in range(9))
    assert outcome.flat.count("status finished") > 1


def test_one_damaged_run_is_compared_as_far_as_it_goes(tmp_path: Path, rekindle: Rekindle) -> None:
    sound, damaged = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    (damaged / "config.json").write_bytes(b"\x00")
    compared = rekindle("compare", sound, damaged, "--json").json["runs"]
    assert [len(run["problems"]) for run in compared] == [0, 1]
    assert [run["summary"]["steps"] for run in compared] == [20, 20]
    assert "Problems" in rekindle("compare", sound, damaged).out


def test_settings_cannot_do_anything_to_the_terminal(tmp_path: Path, rekindle: Rekindle) -> None:
    first, second = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    (first / "config.json").write_text(json.dumps({"\x1b[2J[red]": "\x1b[2J[red]\r\n"}))
    outcome = rekindle("compare", first, second)
    assert all(character.isprintable() for character in outcome.out if character != "\n")
    assert "[red]" in outcome.out


def test_without_a_path_it_is_wrong_usage(rekindle: Rekindle) -> None:
    outcome = rekindle("compare")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "rekindle: compare needs at least one PATH; see rekindle compare --help\n"


def make_group(root: Path, name: str, scores: Any, *, seed: int = 0, env: str | None = None, **settings: Any) -> None:
    """One finished run for each score of its only evaluation."""
    for place, score in enumerate(scores, seed):
        run = TrainingRun.create(name, f"v1-seed{place}", root=root, seed=place)
        run.write_config({"algorithm": "averager", "seed": place, "agent": settings, **({"env": env} if env else {})})
        with open_session(run, checkpoint_every=None) as session:
            play_episode(session)
            evaluate(session, float(score))
            session.stop("enough", complete=True)


def test_groups_of_seeds_get_a_verdict(tmp_path: Path, rekindle: Rekindle) -> None:
    noise = np.random.default_rng(1).normal(size=(3, 6))
    make_group(tmp_path, "slow", noise[0], rate=0.1)
    make_group(tmp_path, "fast", 5 + noise[1], rate=0.2)
    make_group(tmp_path, "again", noise[2], rate=0.1)
    compared = rekindle("compare", tmp_path, "--json").json["trainings"]
    assert [(group["label"], len(group["runs"])) for group in compared["groups"]] == [
        ("again", 6),
        ("fast", 6),
        ("slow", 6),
    ]
    verdicts = {(pair["first"], pair["second"]): pair["verdict"] for pair in compared["differences"]}
    assert verdicts == {("again", "fast"): "better", ("again", "slow"): "noise", ("fast", "slow"): "worse"}
    printed = rekindle("compare", tmp_path).flat
    assert "fast is better than slow by" in printed
    assert "again and slow: no difference beyond noise" in printed
    assert "agent.rate 0.1 0.2 0.1" in printed
    assert "adjusted for 3 comparisons" in printed
    assert "wall time" not in printed
    assert "wall time" in rekindle("compare", tmp_path, "--each").flat


def test_trainings_on_different_environments_are_not_compared(tmp_path: Path, rekindle: Rekindle) -> None:
    noise = np.random.default_rng(2).normal(size=(4, 6))
    for name, scores, rate in (("slow", noise[0], 0.1), ("fast", 5 + noise[1], 0.2)):
        make_group(tmp_path, name, scores, rate=rate, env="Pole")
    make_group(tmp_path, "lake", 90 + noise[2], env="Lake")
    compared = rekindle("compare", tmp_path, "--json").json["trainings"]
    assert [group["environment"] for group in compared["groups"]] == ["Pole", "Lake", "Pole"]
    (difference,) = compared["differences"]
    assert {difference["first"], difference["second"]} == {"slow", "fast"}
    (alone,) = rekindle("compare", tmp_path / "fast", tmp_path / "slow", "--json").json["trainings"]["differences"]
    assert difference == alone  # p is not adjusted for pairs that are not compared
    assert "permutation tests between trainings of the same environment fast" in rekindle("compare", tmp_path).flat
    printed = rekindle("compare", tmp_path / "slow", tmp_path / "lake").flat
    assert "none: the scores of different environments cannot be compared" in printed


def test_settings_divide_the_runs_of_a_name_and_seeds_do_not(tmp_path: Path, rekindle: Rekindle) -> None:
    make_group(tmp_path, "lake", [1.0, 2.0], rate=0.1)
    make_group(tmp_path, "lake", [3.0, 4.0, 5.0], rate=0.2)
    groups = rekindle("compare", tmp_path / "lake", "--json").json["trainings"]["groups"]
    assert {group["label"]: group["scores"] for group in groups} == {
        "lake, rate 0.1": [1.0, 2.0],
        "lake, rate 0.2": [3.0, 4.0, 5.0],
    }


def test_one_training_in_two_directories_is_compared_with_itself(tmp_path: Path, rekindle: Rekindle) -> None:
    make_group(tmp_path / "old", "lake", [1.0, 2.0], rate=0.1)
    make_group(tmp_path / "new", "lake", [3.0, 4.0], seed=2, rate=0.1)
    apart = rekindle("compare", tmp_path / "old", tmp_path / "new", "--json").json["trainings"]
    assert [group["label"] for group in apart["groups"]] == [str(tmp_path / "old"), str(tmp_path / "new")]
    assert [pair["verdict"] for pair in apart["differences"]] == ["too few runs"]


def test_runs_that_are_not_finished_or_repeat_another_do_not_count(tmp_path: Path, rekindle: Rekindle) -> None:
    make_group(tmp_path, "lake", [1.0, 2.0])
    make_group(tmp_path, "lake", [1.0])
    unfinished = TrainingRun.create("lake", "v2", root=tmp_path, seed=7)
    unfinished.write_config({"algorithm": "averager", "seed": 7, "agent": {}})
    with open_session(unfinished) as session:
        play_episode(session)
    (group,) = rekindle("compare", tmp_path, "--json").json["trainings"]["groups"]
    assert group["scores"] == [1.0, 2.0]
    assert sorted(group["left_out"].values()) == ["it repeats another run: same seed, same scores", "stopped"]
    assert "Left out" in rekindle("compare", tmp_path).out


@pytest.mark.parametrize(("measure", "scores"), [("final", [1.0, 3.0]), ("best", [5.0, 3.0]), ("mean", [3.0, 2.0])])
def test_the_score_of_a_run_is_that_of_an_evaluation(
    tmp_path: Path, rekindle: Rekindle, measure: str, scores: list[float]
) -> None:
    for seed, returns in enumerate(((5.0, 1.0), (1.0, 3.0))):
        with open_session(TrainingRun.create("lake", root=tmp_path, seed=seed)) as session:
            for value in returns:
                play_episode(session)
                evaluate(session, value)
            session.stop("enough", complete=True)
    (group,) = rekindle("compare", tmp_path, "--measure", measure, "--json").json["trainings"]["groups"]
    assert group["scores"] == scores


def test_without_evaluations_the_last_training_episodes_are_the_score(tmp_path: Path, rekindle: Rekindle) -> None:
    for reward in (1.0, 2.0):
        make_run(tmp_path, "lake", reward=reward)
    trainings = rekindle("compare", tmp_path, "--json").json["trainings"]
    assert (trainings["of"], trainings["groups"][0]["scores"]) == ("episodes", [5.0, 10.0])
    assert "last 100 episodes" in rekindle("compare", tmp_path).flat
