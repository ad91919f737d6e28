"""Numbers in the page: few characters, and enough digits to tell the ticks of an axis apart."""

from __future__ import annotations

import json
from pathlib import Path

from node import run_node

FORMAT = Path(__file__).parents[2] / "src/rekindle/ui/dashboard/static/format.js"


def test_ticks_of_an_axis_differ_and_huge_numbers_are_short(tmp_path: Path) -> None:
    calls = {
        "compact(12_500)": "12.5k",
        "compact(1.25e-5)": "1.3e-5",
        "compact(360.25, 0.05)": "360.25",
        "compact(360.3, 0.05)": "360.3",
        "compact(2_000_050, 50)": "2.00005M",
        "compact(1.0001, 0.0001)": "1.0001",
        "compact(-2.5e-7, 5e-8)": "-2.5e-7",
        "compact(0, 1e-3)": "0",
        "compact(2e27, 1e27)": "2e27",
        "compact(-1.25e16)": "-1.25e16",
        "compact(999e12)": "999T",
    }
    script = tmp_path / "numbers.mjs"
    script.write_text(
        f"import {{ compact }} from {json.dumps(FORMAT.as_uri())};\nconsole.log(JSON.stringify([{', '.join(calls)}]));",
        "utf-8",
    )
    printed = [text.replace("\N{MINUS SIGN}", "-") for text in json.loads(run_node(script))]
    assert printed == [*calls.values()]
