"""An option of several values may be given several times."""

import pytest

from rekindle.cli.commands.repeats import joined


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a --tag x --seed 1 --tag y z", "a --tag x y z --seed 1"),
        ("--env.arguments g -5 --steps 9 --env.arguments h -.5", "--env.arguments g -5 h -.5 --steps 9"),
        ("--env_module=m --env-module n -o f", "--env-module m n -o f"),
        ("--set a=1 b=2 -o f --set=c=3", "--set a=1 b=2 c=3 -o f"),
        ("dqn E --seed 1 --seed 2 --agent.hidden-sizes 8 8", "dqn E --seed 1 --seed 2 --agent.hidden-sizes 8 8"),
        ("", ""),
    ],
)
def test_values_of_a_repeated_option_follow_its_first_ones(words: str, expected: str) -> None:
    assert joined(words.split()) == expected.split()
