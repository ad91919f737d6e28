"""Evaluations of a training with actors: on several BLAS threads, numpy would compute other last bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from perilous import trainer

from rekindle.actors import blas
from rekindle.policy.policy import NetworkPolicy

pytestmark = pytest.mark.timeout(120)


def test_an_evaluation_by_the_learner_uses_one_thread_like_one_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = blas._thread_counts()
    if not found:
        pytest.skip("numpy has no OpenBLAS here")
    counts: list[int] = []
    act = NetworkPolicy.act

    def watched(self: NetworkPolicy, *arguments: Any) -> Any:
        counts.append(found[0][0]())
        return act(self, *arguments)

    monkeypatch.setattr(NetworkPolicy, "act", watched)
    before = [get() for get, _ in found]
    for _, put in found:
        put(2)
    try:
        training = trainer(tmp_path, tmp_path / "perils", steps=80, eval_every=None)
        training.train()
        assert set(counts) == {1}
        assert found[0][0]() == 2
    finally:
        for count, (_, put) in zip(before, found, strict=True):
            put(count)
