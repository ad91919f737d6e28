"""JSON on standard output means what it meant, and is plain ASCII."""

from __future__ import annotations

import contextlib
import io
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.ui.output import write_json

TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)


@given(TREES)
def test_json_means_what_it_meant_and_is_ascii(tree: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        write_json(tree)
    text = printed.getvalue()
    assert text.isascii()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert json.loads(text) == tree


def test_in_json_nan_and_infinity_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    write_json([math.nan, math.inf, -math.inf])
    assert json.loads(capsys.readouterr().out) == [None, None, None]
