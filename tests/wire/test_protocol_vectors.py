"""The messages in the documentation of the protocol, in both encodings."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rekindle.wire.messages import decode_reply, decode_request, encode
from rekindle.wire.rows import PartFormat, RowFormat

VECTORS = json.loads((Path(__file__).parents[2] / "docs/protocol-vectors.json").read_text(encoding="utf-8"))
PLAIN = {
    "observations": RowFormat.read({"": PartFormat("float32", (2,))}),
    "actions": RowFormat.of_dtype("int32"),
    "action": RowFormat.of_dtype("int32"),
    "rewards": RowFormat.of_dtype("float64"),
    "statuses": RowFormat.of_dtype("uint8"),
}
COMPOSITE = PLAIN | {
    "observations": RowFormat.read({"eye": PartFormat("uint8", (2, 2)), "speed": PartFormat("float32", (1,))}),
    "actions": RowFormat.read({"move": PartFormat("int32"), "turn": PartFormat("float32", (1,))}),
}


def listed(tree: Any, formats: dict[str, RowFormat]) -> Any:
    """A message of msgpack in the form of JSON: raw arrays as lists."""
    if isinstance(tree, list):
        return [listed(item, formats) for item in tree]
    if not isinstance(tree, dict):
        return tree
    found: dict[str, Any] = {}
    for key, value in tree.items():
        form = formats.get(key)
        raw = (
            value if isinstance(value, bytes) else next(iter(value.values()), None) if isinstance(value, dict) else None
        )
        if form is not None and isinstance(raw, bytes):
            rows = form.count(value, is_json=False)
            found[key] = form.sent(form.received(value, rows), is_json=True)
        else:
            found[key] = listed(value, formats)
    return found


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_both_encodings_of_a_message_are_the_same_message(vector: dict[str, Any]) -> None:
    formats = COMPOSITE if vector["name"].startswith("composite") else PLAIN
    decode = decode_request if vector["direction"] == "client" else decode_reply
    raw = decode(bytes.fromhex(vector["msgpack"]), is_json=False)
    nested = decode(json.dumps(vector["json"]).encode(), is_json=True)
    assert type(raw) is type(nested)
    assert listed(msgspec.msgpack.decode(encode(raw, is_json=False)), formats) == json.loads(
        encode(nested, is_json=True)
    )
    assert listed(msgspec.msgpack.decode(bytes.fromhex(vector["msgpack"])), formats) == vector["json"]


@pytest.mark.parametrize("rows", [4, 0])
def test_arrays_come_back_as_they_were(rows: int) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float16", "float32", "float64", "int8", "uint16", "int32", "uint64", "bool"):
        form = RowFormat.read({"a": PartFormat(dtype, (2, 3)), "b": PartFormat("float32")})
        arrays = [rng.integers(0, 2, (rows, 2, 3)).astype(dtype), rng.random(rows).astype(np.float32)]
        for is_json in (False, True):
            again = form.received(form.sent(arrays, is_json=is_json), rows, is_json=is_json)
            for before, after in zip(arrays, again, strict=True):
                assert before.dtype == after.dtype
                assert np.array_equal(before, after)
