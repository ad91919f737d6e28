from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(request.param)


def measured(case: str, **sides: list[float]) -> list[dict[str, object]]:
    return [
        {"repeat": repeat, "case": case, "side": side, "cpu_us": value}
        for side, values in sides.items()
        for repeat, value in enumerate(values)
    ]


@pytest.mark.parametrize("script", ["peers"], indirect=True)
def test_ratios_pair_repeats_and_the_fastest_peer_decides(script: ModuleType) -> None:
    results = measured("dqn", rekindle=[10, 20, 10], sb3=[40, 100, 50], sbx=[60, 60, 60], cleanrl=[30, 61, 29])
    row = script.table(results).splitlines()[-1]
    assert "| 10 | 40 (5.0 times ours)" in row
    assert "29 (3.0 times ours)" in row
    assert row.endswith("| Stable-Baselines3 4, the fastest 3 | yes |")
    results[-2]["cpu_us"] = 59
    assert script.table(results).endswith("| no |")


@pytest.mark.parametrize("script", ["peers"], indirect=True)
def test_only_what_has_no_result_is_run(script: ModuleType) -> None:
    results = measured("ppo", rekindle=[1], sb3=[1, 1], sbx=[1, 1], cleanrl=[1, 1])
    assert list(script.missing(results, 2, "ppo", script.PEERS)) == [(1, "ppo", "rekindle")]
    assert list(script.missing([], 1, "ppo", ["sbx"])) == [(0, "ppo", "rekindle"), (0, "ppo", "sbx")]


@pytest.mark.parametrize("script", ["peers"], indirect=True)
def test_the_overhead_is_a_share_of_the_run_with_logs(script: ModuleType) -> None:
    assert script.overhead(measured("overhead", on=[100])) is None
    found = script.overhead(measured("overhead", on=[100, 100, 100], off=[80, 95, 99]))
    assert found == {"off_us": 80, "on_us": 100, "share": 0.05, "most": 0.1, "reached": True}


@pytest.mark.parametrize("script", ["many_envs"], indirect=True)
def test_the_ratio_to_rejax_is_the_median_of_the_ratios_of_the_repeats(script: ModuleType) -> None:
    def timed(num_envs: int, **sides: list[float]) -> list[dict[str, object]]:
        return [{**result, "num_envs": num_envs} for result in measured("", **sides)]

    results = timed(64, rekindle=[6.0, 14.0, 8.0], rejax=[6.0, 10.0, 7.0]) + timed(1024, rekindle=[9.0])
    assert script.table(results).splitlines()[2:] == ["| 64 | 6.0 | 6.0 | 1.14 | 1.2 | yes |"]
    results += timed(1024, rejax=[8.0])
    assert script.table(results).endswith("| 1,024 | 9.0 | 8.0 | 1.12 | 1.0 | no |")
    assert list(script.missing(results, 2, 1024)) == [(1, 1024, "rekindle"), (1, 1024, "rejax")]


@pytest.mark.parametrize("script", ["halfcheetah"], indirect=True)
def test_the_difference_of_means_has_a_standard_error(script: ModuleType) -> None:
    finals = {"rekindle": [10.0, 12.0, 14.0], "sb3": [1.0, 1.0, 4.0]}
    results = [
        {"side": side, "seed": seed, "final": final, "cpu_seconds": 60.0}
        for side, values in finals.items()
        for seed, final in enumerate(values)
    ]
    assert script.standard_error(*finals.values()) == pytest.approx((4 / 3 + 3 / 3) ** 0.5)
    text = script.table(results)
    assert "| rekindle | 12 | 10, 12, 14 | 1.0 min |" in text
    assert text.endswith("The difference of the means is +10, its standard error 2.")


@pytest.mark.parametrize("script", ["image_learning"], indirect=True)
def test_a_curve_that_is_not_finished_leaves_gaps(script: ModuleType) -> None:
    results = [
        {"env": "a", "seed": 0, "evaluations": [[10_000, -20.04], [20_000, 155.5]]},
        {"env": "b", "seed": 0, "evaluations": [[5_000, 1.0]]},
        {"env": "a", "seed": 1, "evaluations": [[10_000, 3.0]]},
    ]
    assert script.table(results).splitlines() == [
        "| env steps | 10,000 | 20,000 |",
        "|---|---:|---:|",
        "| return, seed 0 | -20 | 156 |",
        "| return, seed 1 | 3 |  |",
        "",
        "| env steps | 5,000 |",
        "|---|---:|",
        "| return, seed 0 | 1 |",
    ]


@pytest.mark.parametrize("script", ["learning"], indirect=True)
def test_sides_are_told_apart_and_what_is_missing_is_named(script: ModuleType) -> None:
    def result(seed: int, final: float, **side: str) -> dict[str, object]:
        known = {"algorithm": "dqn", "env": "MountainCar-v0", "steps": 120_000, "best": -99.0, "cpu_seconds": 50.0}
        return {**side, **known, "seed": seed, "final": final}

    ours = [result(seed, -100.0 - seed % 2) for seed in range(1000, 1005)]
    lines = script.beside_table([*ours, result(1003, -120.0, side="sb3"), result(7, 0.0, side="sb3")]).splitlines()
    assert lines[2].startswith("| DQN | MountainCar-v0 | 120,000 | rekindle | -100.4 | -100 (-99), -101 (-99),")
    assert lines[2].endswith("| 50 s |  |")
    assert lines[3].endswith("| -120 (-99) | 50 s | seed 1000, seed 1001, seed 1002, seed 1004 |")
    assert lines[5].endswith("| Stable-Baselines3 |  |  |  | all |")
    assert "MountainCar-v0" not in script.table(ours)


KNOWN = {"pendulum-random": {"mean_return": -1_000.0}, "pendulum-expert": {"mean_return": 0.0}}


@pytest.mark.parametrize("script", ["offline"], indirect=True)
def test_the_order_of_agents_and_the_values_of_iql_are_judged(script: ModuleType) -> None:
    def result(algorithm: str, level: str, final: float, **more: object) -> dict[str, object]:
        known = {"side": "rekindle", "algorithm": algorithm, "data": f"pendulum-{level}", "seed": 0}
        return {**known, "final": final, **more}

    values = {"start_values": [0.0, -180.0], "largest_return": -164.5}
    results = [
        result("iql", "medium-replay", -300.0, **values),
        result("bc", "medium-replay", -200.0),
        result("bc", "expert", -40.0),
    ]
    assert script.order_table(results, KNOWN).splitlines()[2:] == [
        "| pendulum-expert | BC >= 95 | 96.0 | 96.0 (96) | yes |",
        "| pendulum-medium-replay | IQL above BC | -10.0 | IQL 70.0 (70), BC 80.0 (80) | no |",
        "| pendulum-medium-replay | IQL's value of first states <= -164.5 | -180.0 | -180.0 | yes |",
    ]


@pytest.mark.parametrize("script", ["fine_tuning"], indirect=True)
def test_what_falls_after_its_start_is_noticed(script: ModuleType) -> None:
    def result(seed: int, *scores: float) -> dict[str, object]:
        evaluations = [[1_000 * index, score] for index, score in enumerate(scores)]
        return {"kind": "tuned", "world": "pendulum", "seed": seed, "evaluations": evaluations}

    rises, falls = result(0, -500, -550, -600, -550, -100), result(1, -500, -610, -610, -620, 0)
    assert script.tuned_table([falls, rises], KNOWN).splitlines()[2:] == [
        "| Pendulum-v1 | 0 | 50.0 | 45, 40, 45, 90 | 43.3 | 58.3 | yes |",
        "| Pendulum-v1 | 1 | 50.0 | 39, 39, 38, 100 | 38.7 | 59.0 | no |",
    ]
    fuel = {"kind": "fuel", "world": "halfcheetah", "seed": 2, "mark": 5_000.0, "evaluations": [[10, 1.0], [20, 6e3]]}
    assert script.fuel_table([fuel, rises]).endswith("| HalfCheetah-v5 | 2 | 5000 | 20 | 1, 6000 |")
