"""What actors gain, and what their transport costs, beside others.

    python benchmarks/actors.py sleep compute               # one repeat of some groups, appended to the results
    python benchmarks/actors.py --table                     # only the table of the results so far

The groups are sleep, compute, transport, lander, ray, peers-compute and peers-cartpole. In a repeat the cases of a
group are measured one after the other; a ratio is the median of the ratios of each repeat. Starting processes and
compiling are not measured. The agent does nothing where the environment is measured. The peers, Stable-Baselines3 and
Sample Factory, are installed first. Other programs spoil a repeat: the table leaves out those with any, if there is
one without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from actor_campaign import descendants
from learning import ONE_THREAD, RESULTS, read
from venvs import python_of

from rekindle import Trainer
from rekindle.actors import ActorProcesses, Cast, Order, RoundShape
from rekindle.actors.policies import packed_policy
from rekindle.actors.rounds import first_start, next_starts
from rekindle.agent import PortablePolicy
from rekindle.agents import DQN
from rekindle.envs import Determinism, EnvFactory

PROGRAMS = Path(__file__).parent / "programs"
PPO = {"rollout_steps": 2_048, "minibatch_size": 256, "epochs": 4}


def rates(training: Trainer, *, skip: float, seconds: float) -> float:
    """Env steps per second of wall time, from the moment at which so many seconds have passed since the first step."""
    began = first = 0.0
    steps_at_first = 0
    for step in training.steps():
        now = time.perf_counter()
        if not began:
            began = now
        if not first and now - began > skip:
            first, steps_at_first = now, step.total_steps
        if first and now - first > seconds:
            return (step.total_steps - steps_at_first) / (now - first)
    raise AssertionError("the training ended too early")


def idle(env: str, *, actors: int = 4, round_steps: int = 32, **options: Any) -> float:
    """Env steps per second of an agent that does nothing."""
    training = Trainer(
        f"actor_worlds:{env}",
        "actor_worlds:IdleAgent",
        actors=actors,
        round_steps=round_steps,
        determinism="repeats",
        steps=None,
        eval_episodes=0,
        checkpoint_every=None,
        **options,
    )
    return rates(training, skip=1.0, seconds=4.0)


def transport(round_transitions: int) -> float:
    """Microseconds of the learner's CPU time a transition: to send a policy, to wait for a round and to receive it."""
    factory = EnvFactory("CartPole-v1")
    env = factory()
    actors, steps = 4, round_transitions // 8
    shape = RoundShape.of(env.observation_space, env.action_space, actors=actors, envs_each=2, steps=steps)
    policy = cast("PortablePolicy", DQN(env.observation_space, env.action_space, seed=0).policy())
    crew = ActorProcesses(Cast(factory, shape, 0, Determinism.REPEATS), workers=2)
    try:
        starts = [first_start(0, actor, 2) for actor in range(actors)]
        spent: list[float] = []
        for number in range(100):
            before = time.process_time()
            crew.start(Order(number, 0, packed_policy(policy), None, starts))
            arrays, ends = crew.collect()
            starts = next_starts(starts, arrays, ends, shape)
            spent.append(time.process_time() - before)
    finally:
        crew.close()
    return statistics.median(spent[5:]) * 1e6 / shape.transitions


def lander(**options: Any) -> float:
    """Env steps per second of DQN on LunarLander."""
    training = Trainer(
        "LunarLander-v3",
        "dqn",
        agent_settings={"warmup_steps": 500, "update_every": 4, "updates_each": 1},
        determinism="repeats",
        steps=None,
        eval_episodes=0,
        **options,
    )
    return rates(training, skip=3.0, seconds=8.0)


def cartpole(place: str) -> float:
    """Env steps per second of CartPole, in rounds of 4,096 transitions."""
    training = Trainer(
        "CartPole-v1",
        "actor_worlds:IdleAgent",
        actors=4,
        envs_each=8,
        round_steps=128,
        workers=2,
        actors_on=place,
        determinism="repeats",
        steps=None,
        eval_episodes=0,
        checkpoint_every=None,
    )
    return rates(training, skip=10.0, seconds=6.0)  # the processes of Ray itself need seconds to start


def ppo(env: str) -> float:
    """Env steps per second of PPO with 8 environments in 2 processes."""
    training = Trainer(
        env if env.endswith("-v1") else f"actor_worlds:{env}",
        "ppo",
        actors=4,
        envs_each=2,
        round_steps=64,
        workers=2,
        agent_settings={"hidden_sizes": [64, 64], **PPO},
        determinism="repeats",
        steps=None,
        eval_episodes=0,
        checkpoint_every=None,
    )
    return rates(training, skip=4.0, seconds=8.0)


def peer(name: str, program: str, env: str, *, envs: int = 8, learns: bool = True) -> float:
    """The same of a peer."""
    given = {"env": env, "envs": envs, "workers": 2, "skip": 4, "seconds": 8 if learns else 4, "learns": learns, **PPO}
    command = [str(python_of(name)), str(PROGRAMS / program), json.dumps(given)]
    environment = {**os.environ, **ONE_THREAD}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=120)  # one that does not end is not measured
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it may leave processes of its own
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(output)["rate"]


class Group(NamedTuple):
    """Cases that are compared: the first is what the others are divided by."""

    title: str
    unit: str
    cases: dict[str, Callable[[], float]]


def peers_on(env: str) -> dict[str, Callable[[], float]]:
    return {
        "Stable-Baselines3, SubprocVecEnv of 8": lambda: peer("sb3", "subproc.py", env),
        "Sample Factory, 2 workers": lambda: peer("sample-factory", "appo.py", env),
        "rekindle, 2 processes": lambda: ppo(env),
    }


GROUPS = {
    "sleep": Group(
        "an environment that waits 5 ms",
        "steps/s",
        {
            "1 process": lambda: idle("Sleeping", workers=1),
            "4 processes": lambda: idle("Sleeping", workers=4),
            "SubprocVecEnv of 4": lambda: peer("sb3", "subproc.py", "Sleeping", envs=4, learns=False),
        },
    ),
    "compute": Group(
        "an environment that computes for 1 ms",
        "steps/s",
        {
            "1 process": lambda: idle("Computing", workers=1),
            "2 processes": lambda: idle("Computing", workers=2),
            "SubprocVecEnv of 4": lambda: peer("sb3", "subproc.py", "Computing", envs=4, learns=False),
        },
    ),
    "transport": Group(
        "transport",
        "us of CPU a transition",
        {f"rounds of {count:,}": lambda count=count: transport(count) for count in (1_024, 4_096)},
    ),
    "lander": Group(
        "DQN on LunarLander, 8 environments",
        "steps/s",
        {
            "`Synchronous`": lambda: lander(num_envs=8),
            "2 processes, pipeline 1": lambda: lander(actors=4, envs_each=2, round_steps=32, workers=2),
        },
    ),
    "ray": Group(
        "CartPole, rounds of 4,096 transitions",
        "steps/s",
        {"2 processes": lambda: cartpole("processes"), "Ray, 2 workers": lambda: cartpole("ray")},
    ),
    "peers-compute": Group("PPO, 8 environments that compute for 1 ms", "steps/s", peers_on("Computing")),
    "peers-cartpole": Group("PPO on CartPole, 8 environments", "steps/s", peers_on("CartPole-v1")),
}


QUIET = 0.1
"""The most processors that other programs may use while a case is measured."""


def used() -> tuple[float, float]:
    """Seconds of CPU time that all processes have used so far, and that this one and all that it started have."""
    tick = os.sysconf("SC_CLK_TCK")
    busy = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    tree = [os.getpid(), *descendants(os.getpid())]
    own = 0
    for process in tree:
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            own += sum(map(int, fields[11:15]))  # its own, and those of children that have ended
    return (sum(busy) - busy[3] - busy[4]) / tick, own / tick


def measured_alone(measure: Callable[[], float]) -> tuple[float, float]:
    """A case, and how many processors other programs have used meanwhile."""
    began, (all_before, own_before) = time.perf_counter(), used()
    value = measure()
    all_after, own_after = used()
    others = (all_after - all_before) - (own_after - own_before)
    return value, others / (time.perf_counter() - began)


def table(there: list[dict[str, Any]]) -> str:
    """The median of each case, and of its ratios, as Markdown."""
    lines = ["| what | case | | ratio |", "|---|---|---:|---:|"]
    for name, group in GROUPS.items():
        repeats = [each for each in there if each["group"] == name]
        quiet = [each for each in repeats if max(each["others"].values()) < QUIET]
        found = [each["measured"] for each in quiet or repeats]
        for case in group.cases if found else ():
            base = next(iter(group.cases))
            values = [repeat[case] for repeat in found if case in repeat]
            ratios = [repeat[case] / repeat[base] for repeat in found if case in repeat and base in repeat]
            if values:
                value = f"{statistics.median(values):,.{2 if group.unit.startswith('us') else 0}f} {group.unit}"
                ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
                lines.append(f"| {group.title} | {case} | {value} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    results = RESULTS.with_name("actors.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []])
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--table", action="store_true", help="show the results so far, and run nothing")
    options = parser.parse_args()
    path = options.results.resolve()
    os.chdir(tempfile.mkdtemp())  # for the runs
    names: list[str] = [] if options.table else options.groups or [*GROUPS]
    for name in names:
        measured: dict[str, float] = {}
        others: dict[str, float] = {}
        for case, measure in GROUPS[name].cases.items():
            try:
                value, others[case] = (round(number, 3) for number in measured_alone(measure))
            except subprocess.SubprocessError as error:
                print(f"{name}, {case}: {error}", file=sys.stderr)
            else:
                measured[case] = value
                print(f"{name}, {case}: {value:g} ({others[case]:.2f} others)", file=sys.stderr, flush=True)
        with path.open("a") as file:
            result = {"group": name, "processors": os.cpu_count(), "measured": measured, "others": others}
            file.write(json.dumps(result) + "\n")
    print(table(read(path)))


if __name__ == "__main__":
    main()
