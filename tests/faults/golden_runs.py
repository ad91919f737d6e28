"""Makes the golden runs of this format version: `python tests/faults/golden_runs.py`, only when the version changes."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import forms

import rekindle
from rekindle.storage.codec import FORMAT_VERSION

GOLDEN = Path(__file__).parents[1] / "golden"


def make(kind: str, directory: Path) -> Path:
    """One run, `crashed` in an open episode with a checkpoint behind it, or `finished`."""
    session = forms.begin(directory, "two_calls", "sarsa")
    for _ in forms.two_calls(session):
        if kind == "crashed" and session.total_steps == 17:
            session.checkpoint(wait=True)
            break
    if kind == "finished":
        session.close()
    assert session.run is not None
    return session.run.path


def main() -> None:
    digests = GOLDEN / f"run-format-{FORMAT_VERSION}.json"
    if digests.exists():
        sys.exit(f"{digests} is there already: a golden run is never made again")
    found: dict[str, object] = {}
    for kind in ("crashed", "finished"):
        target = GOLDEN / f"run-format-{FORMAT_VERSION}-{kind}"
        with tempfile.TemporaryDirectory() as directory, mock.patch("socket.gethostname", return_value="golden"):
            path = make(kind, Path(directory))
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("lock", "latest.mpk", "best.mpk"))
        found[kind] = rekindle.verify(target).digests
    digests.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
