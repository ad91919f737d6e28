from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import pickle
import socket
import struct
import subprocess
import sys
import textwrap
import tracemalloc
import zipfile
from collections import OrderedDict
from enum import IntEnum
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from rekindle.errors import FileRefused, StateError, StorageError
from rekindle.storage import codec
from rekindle.storage.codec import (
    FORMAT_VERSION,
    MAX_DEPTH,
    MAX_FILE,
    MAX_NODES,
    decode,
    encode,
    read_file,
    tree_digest,
)

GOLDEN = Path(__file__).parents[1] / "golden"
MAGIC = b"\x89RKNDL\r\n"
HEADER = 52
GOLDEN_DIGEST = "fc35dc5a6a2b6e9cb78e5efe60e33117b7781b8fce7707d72460883c400d2b30"


def file_of(payload: bytes, *, magic: bytes = MAGIC, version: int = 1, length: int | None = None) -> bytes:
    """A file whose checksum is right, whatever else is wrong with it."""
    prefix = magic + struct.pack("<IQ", version, len(payload) if length is None else length)
    return prefix + hashlib.sha256(prefix + payload).digest() + payload


def under_a(value: bytes) -> bytes:
    """The payload of {"a": value}."""
    return b"\x81\xa1a" + value


def array_of(
    code: int,
    shape: tuple[int, ...],
    raw: bytes,
    *,
    kind: int = 1,
    length: int | None = None,
    axes: int | None = None,
    padding: bytes = b"",
) -> bytes:
    """An array as the format has it, or as a liar has it."""
    body = bytes([code, len(shape) if axes is None else axes, len(padding)])
    body += struct.pack(f"<{len(shape)}Q", *shape) + padding + raw
    return b"\xc9" + struct.pack(">Ib", len(body) if length is None else length, kind) + body


def saved(tree: dict[str, Any]) -> bytes:
    return b"".join(encode(tree))


def loaded(tree: dict[str, Any]) -> dict[str, Any]:
    return decode(saved(tree), name="x.mpk")


def refusal(data: bytes | bytearray) -> str:
    with pytest.raises(FileRefused) as caught:
        decode(data, name="x.mpk")
    message = str(caught.value)
    assert message.startswith("x.mpk: ")
    return message


def same(left: Any, right: Any) -> bool:
    """Equal in type, value and bits; the byte order of an array does not count."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, np.ndarray):
        little = [array.astype(array.dtype.newbyteorder("<")) for array in (left, right)]
        return (
            little[0].dtype == little[1].dtype
            and left.shape == right.shape
            and little[0].tobytes() == little[1].tobytes()
        )
    return left == right


dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(sizes=(64, 128)),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(),
    arrays,
    arrays.map(np.transpose),
)
trees = st.dictionaries(
    st.text(),
    st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8),
)

SMALL: dict[str, Any] = {
    "name": "é",
    "counts": [0, -1, 2**63],
    "rate": 0.5,
    "on": True,
    "none": None,
    "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
    "mask": np.array([True, False]),
}


class TestRoundTrip:
    @settings(deadline=None)
    @given(trees)
    def test_any_plain_tree_comes_back_bit_for_bit(self, tree: dict[str, Any]) -> None:
        assert same(loaded(tree), tree)

    def test_the_order_of_a_dict_is_kept(self) -> None:
        assert list(loaded({"b": 1, "a": 2, "c": 3})) == ["b", "a", "c"]

    @pytest.mark.parametrize("count", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
    def test_lengths_on_either_side_of_each_msgpack_form_come_back(self, count: int) -> None:
        tree = {"s": "x" * count, "l": [None] * count, "d": {str(i): i for i in range(count)}}
        assert loaded(tree) == tree

    @pytest.mark.parametrize("bits", [7, 8, 15, 16, 31, 32, 63])
    def test_integers_on_either_side_of_each_msgpack_form_come_back(self, bits: int) -> None:
        tree = {"i": [2**bits - 1, 2**bits, -(2**bits) + 1, -(2**bits)]}
        assert loaded(tree) == tree

    @pytest.mark.parametrize("bits", ["7ff8000000000000", "7ff4000000000001", "fff8dead0000beef", "8000000000000000"])
    def test_nan_payloads_and_the_sign_of_zero_are_kept(self, bits: str) -> None:
        number = struct.unpack(">d", bytes.fromhex(bits))[0]
        assert struct.pack(">d", loaded({"x": number})["x"]).hex() == bits

    def test_an_array_without_axes_comes_back_without_axes(self) -> None:
        assert loaded({"x": np.array(3, np.int16)})["x"].shape == ()

    def test_a_tree_as_deep_as_allowed_comes_back(self) -> None:
        tree: dict[str, Any] = {}
        for _ in range(MAX_DEPTH - 1):
            tree = {"d": tree}
        assert loaded(tree) == tree

    def test_a_tree_as_large_as_allowed_comes_back(self) -> None:
        tree = {"x": [0] * (MAX_NODES - 1)}
        assert loaded(tree) == tree

    def test_arrays_come_back_as_views_of_the_data(self) -> None:
        data = saved({"x": np.arange(10)})
        assert np.shares_memory(decode(data, name="x")["x"], np.frombuffer(data, np.uint8))

    @pytest.mark.parametrize("make", [bytes, bytearray, lambda data: memoryview(bytearray(data))])
    def test_arrays_come_back_read_only_from_any_buffer(self, make: Any) -> None:
        array = decode(make(saved({"x": np.arange(10)})), name="x")["x"]
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1

    @pytest.mark.parametrize("shift", range(17))
    def test_arrays_start_at_a_multiple_of_sixteen_in_the_file(self, shift: int) -> None:
        data = saved({"s" * shift: np.arange(3), "small": np.ones(3, np.int8), "large": np.ones(5000, np.complex128)})
        base = np.frombuffer(data, np.uint8).ctypes.data
        assert [(array.ctypes.data - base) % 16 for array in decode(data, name="x").values()] == [0, 0, 0]


class TestEncode:
    def test_the_layout_is_as_documented(self) -> None:
        payload = under_a(array_of(5, (1, 2), struct.pack("<2q", 1, -1), padding=bytes(-(52 + 3 + 9 + 16) % 16)))
        assert saved({"a": np.array([[1, -1]])}) == file_of(payload, version=FORMAT_VERSION)

    def test_a_large_array_is_not_copied(self) -> None:
        array = np.zeros(1 << 20)
        assert any(np.shares_memory(array, np.frombuffer(piece, np.uint8)) for piece in encode({"x": array}))

    def test_every_piece_counts_its_length_in_bytes(self) -> None:
        pieces = encode({"x": np.zeros((64, 64)), "y": [np.ones(5000, bool), "after"]})
        assert [len(piece) for piece in pieces] == [memoryview(piece).nbytes for piece in pieces]

    @pytest.mark.parametrize(
        ("value", "kind", "advice"),
        [
            ((1, 2), "tuple", "list()"),
            ({1, 2}, "set", "sorted()"),
            (frozenset(), "frozenset", "sorted()"),
            (np.int64(1), "numpy.int64", "int()"),
            (np.float64(1), "numpy.float64", "float()"),
            (np.float32(1), "numpy.float32", "float()"),
            (np.bool_(1), "numpy.bool", "bool()"),
            (np.str_("x"), "numpy.str_", "str()"),
            (np.complex64(1), "numpy.complex64", "np.asarray()"),
            (1j, "complex", "np.asarray()"),
            (b"x", "bytes", "np.frombuffer"),
            (bytearray(b"x"), "bytearray", "np.frombuffer"),
            (OrderedDict(a=1), "collections.OrderedDict", "dict()"),
            (IntEnum("Colour", "RED")(1), "Colour", "int()"),
            (np.ma.masked_array([1]), "MaskedArray", "np.asarray()"),
            (object(), "object", "dict, list, str"),
            (print, "builtin_function", "dict, list, str"),
            (2**64, "int beyond 64 bits", "array"),
            (-(2**63) - 1, "int beyond 64 bits", "array"),
            ("\ud800", "UTF-8", "surrogates"),
            (np.array([None]), "array of object", ".astype()"),
            (np.array(["x"]), "array of <U1", ".astype()"),
            (np.array([1], "M8[s]"), "array of datetime64[s]", ".astype()"),
            (np.zeros(1, np.dtype([("f", "f4")])), "array of [('f', '<f4')]", ".astype()"),
            (np.zeros(1, np.longdouble), f"array of {np.dtype(np.longdouble)}", ".astype()"),
            (np.array([2], np.uint8).view(bool), "bool array", "view(np.uint8)"),
            (np.broadcast_to(np.uint8(0), (2**32,)), "4294967296 bytes", "split"),
        ],
        ids=lambda value: str(type(value)) if not isinstance(value, str) else "",
    )
    def test_what_is_not_plain_is_refused_by_place_kind_and_remedy(self, value: Any, kind: str, advice: str) -> None:
        with pytest.raises(StateError) as caught:
            encode({"agent": {"q": [0, 1, 2, value]}})
        message = str(caught.value)
        assert message.startswith("agent.q[3] ")
        assert kind in message
        assert advice in message

    def test_a_key_that_is_not_a_name_is_quoted_in_the_path(self) -> None:
        with pytest.raises(StateError, match=r"^net\['layer\.0/w'\]\[0\] is a set"):
            encode({"net": {"layer.0/w": [set()]}})

    @pytest.mark.parametrize("key", [1, None, ("a",), np.str_("a"), b"a"])
    def test_a_key_that_is_not_a_str_is_refused(self, key: Any) -> None:
        with pytest.raises(StateError, match=r"^agent has the key .*str\(\)"):
            encode({"agent": {key: 1}})

    @pytest.mark.parametrize("tree", [[], None, np.zeros(3), OrderedDict()])
    def test_a_root_that_is_not_a_dict_is_refused(self, tree: Any) -> None:
        with pytest.raises(StateError, match="the root of a tree is a dict"):
            encode(tree)

    def test_a_tree_that_contains_itself_is_refused(self) -> None:
        tree: dict[str, Any] = {}
        tree["again"] = tree
        with pytest.raises(StateError, match="cycle"):
            encode(tree)

    def test_a_tree_deeper_than_can_be_read_is_refused(self) -> None:
        tree: dict[str, Any] = {}
        for _ in range(MAX_DEPTH):
            tree = {"d": tree}
        with pytest.raises(StateError, match="levels deep"):
            encode(tree)

    def test_a_tree_of_more_values_than_can_be_read_is_refused(self) -> None:
        with pytest.raises(StateError, match=r"^x brings the tree over 1000000 values.*arrays"):
            encode({"x": [0] * MAX_NODES})

    def test_a_tree_too_large_for_a_file_is_refused(self) -> None:
        gibibyte = np.zeros(1 << 30, np.uint8)
        with pytest.raises(StateError, match="at most"):
            encode({str(i): gibibyte for i in range(MAX_FILE >> 30)})


class TestDamage:
    def test_every_value_of_every_byte_but_the_right_one_is_detected(self) -> None:
        data = bytearray(saved(SMALL))
        for position, right in enumerate(bytes(data)):
            for wrong in range(256):
                if wrong != right:
                    data[position] = wrong
                    refusal(data)
            data[position] = right
        assert same(decode(data, name="x"), SMALL)

    @settings(deadline=None)
    @given(st.dictionaries(st.integers(0, len(saved(SMALL)) - 1), st.integers(1, 255), min_size=2))
    def test_several_damaged_bytes_are_detected(self, damage: dict[int, int]) -> None:
        data = bytearray(saved(SMALL))
        for position, flip in damage.items():
            data[position] ^= flip
        refusal(data)

    def test_truncation_at_every_length_is_detected(self) -> None:
        data = saved(SMALL)
        for length in range(len(data)):
            refusal(data[:length])

    @pytest.mark.parametrize("tail", [b"\0", b"\xc0", b"x" * 1000, saved({})])
    def test_appended_bytes_are_detected(self, tail: bytes) -> None:
        assert "its header says" in refusal(saved(SMALL) + tail)

    def test_line_endings_converted_in_transit_are_detected(self) -> None:
        assert "not a rekindle file" in refusal(saved(SMALL).replace(b"\r\n", b"\n"))


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class TestForeignFiles:
    def test_a_pickle_is_refused_and_not_run(self, tmp_path: Path) -> None:
        trace = tmp_path / "ran"
        refusal(pickle.dumps(_Bomb(trace)))
        refusal(file_of(pickle.dumps(_Bomb(trace))))
        assert not trace.exists()

    def test_an_npz_with_a_pickle_in_it_is_refused_and_not_run(self, tmp_path: Path) -> None:
        trace = tmp_path / "ran"
        buffer = io.BytesIO()
        np.savez(buffer, x=np.array([_Bomb(trace)], dtype=object))
        refusal(buffer.getvalue())
        refusal(file_of(buffer.getvalue()))
        assert not trace.exists()

    def test_a_zip_is_refused(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("x", "y" * 100)
        assert "not a rekindle file" in refusal(buffer.getvalue())

    def test_a_gzipped_checkpoint_is_refused(self) -> None:
        assert "not a rekindle file" in refusal(gzip.compress(saved(SMALL)))

    def test_text_is_refused(self) -> None:
        assert "not a rekindle file" in refusal(b"step,loss\n" * 10)

    def test_an_empty_file_is_refused(self) -> None:
        assert "0 bytes are too few" in refusal(b"")

    def test_bare_msgpack_without_a_header_is_refused(self) -> None:
        assert "not a rekindle file" in refusal(saved(SMALL)[HEADER:])


class TestVersions:
    def test_a_newer_format_names_itself_and_asks_for_an_upgrade(self) -> None:
        message = refusal(file_of(b"from the future", version=7))
        assert "rekindle format 7" in message
        assert "upgrade" in message

    def test_format_zero_is_refused(self) -> None:
        assert "no rekindle format 0" in refusal(file_of(b"\x80", version=0))

    # Made once, when the format was new, by writing b"".join(encode(tree)) of the tree below to the file.
    # It is never made again: every later rekindle must load it as it is.
    def test_the_golden_file_of_format_1_loads(self) -> None:
        tree = {
            "agent": {
                "weights": {
                    "w": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
                    "b": np.array([-0.0, np.inf]),
                },
                "updates": 12345,
                "name": "q-learning é ✓",
            },
            "numbers": [0, -1, 127, 128, -32, -33, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1],
            "floats": [0.1, -0.0, 1e300, float("inf"), struct.unpack(">d", b"\x7f\xf4\0\0\0\0\0\1")[0]],
            "flags": [True, False, None],
            "empty": {"dict": {}, "list": [], "str": "", "array": np.zeros((0, 3), np.uint8)},
            "dtypes": {
                name: np.array([0, 1, 1], name)
                for name in (
                    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
                    *("float16", "float32", "float64", "complex64", "complex128"),
                )
            },
            "scalar": np.array(7, np.int64),
            "wall_time": 1700000000.25,
        }
        assert same(read_file(GOLDEN / "format-1.mpk"), tree)

    def test_the_digest_of_the_golden_file_stays_what_it_was(self) -> None:
        assert tree_digest(read_file(GOLDEN / "format-1.mpk")) == GOLDEN_DIGEST


class TestHostilePayloads:
    """Files whose header and checksum are right."""

    @pytest.mark.parametrize(
        "claim",
        [
            pytest.param(b"\xd9\xff", id="str8"),
            pytest.param(b"\xda\xff\xff", id="str16"),
            pytest.param(b"\xdb\xff\xff\xff\xff", id="str32"),
            pytest.param(b"\xdc\xff\xff", id="array16"),
            pytest.param(b"\xdd\xff\xff\xff\xff", id="array32"),
            pytest.param(b"\xde\xff\xff", id="map16"),
            pytest.param(b"\xdf\xff\xff\xff\xff", id="map32"),
            pytest.param(b"\xdf\x7f\xff\xff\xff\xa1a", id="map32 with a key"),
            pytest.param(b"\xdd\0\x0f\0\0" + b"\xdd\0\x0f\0\0" * 50, id="lists of lists"),
            pytest.param(array_of(12, (2**29 - 3,), b"", length=2**32 - 13), id="4 GiB array"),
            pytest.param(array_of(12, (2**40,), b"", length=11), id="8 TiB array"),
            pytest.param(b"\xc9\xff\xff\xff\xff\x01", id="ext32 without a head"),
        ],
    )
    def test_a_huge_length_is_refused_before_anything_is_allocated(self, claim: bytes) -> None:
        data = file_of(under_a(claim))
        tracemalloc.start()
        try:
            refusal(data)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("claim", [b"\x92\xc0", b"\xdc\0\3\xc0\xc0", b"\x82\xa1a\xc0", b"\xde\0\2\xa1a\xc0"])
    def test_more_values_than_bytes_are_refused_before_the_first_is_read(self, claim: bytes) -> None:
        assert "values cannot be in the" in refusal(file_of(under_a(claim)))

    def test_millions_of_empty_maps_in_one_list_are_refused_before_the_first_is_made(self) -> None:
        data = file_of(under_a(b"\xdd" + struct.pack(">I", 4_000_000) + b"\x80" * 4_000_000))
        tracemalloc.start()
        try:
            assert "more than 1000000 values" in refusal(data)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()

    def test_millions_of_empty_maps_in_many_lists_stop_at_the_cap(self) -> None:
        maps = b"\xdc\xff\xff" + b"\x80" * 65535
        data = file_of(under_a(b"\xdc\x00\x40" + maps * 64))
        assert "more than 1000000 values" in refusal(data)

    @pytest.mark.parametrize("level", [b"\x91", b"\x81\xa1a", b"\xdc\0\1", b"\xdf\0\0\0\1\xa1a", b"\x81"])
    def test_nesting_of_a_hundred_thousand_is_refused(self, level: bytes) -> None:
        refused = refusal(file_of(under_a(level * 100_000 + b"\xc0")))
        assert "levels deep" in refused

    def test_a_key_that_stands_twice_is_refused(self) -> None:
        assert "'a' occurs twice" in refusal(file_of(b"\x82\xa1a\x01\xa1a\x01"))

    def test_a_key_that_stands_twice_in_two_encodings_is_refused(self) -> None:
        assert "'a' occurs twice" in refusal(file_of(b"\x82\xa1a\x01\xd9\x01a\x01"))

    @pytest.mark.parametrize("key", [b"\x01", b"\xc0", b"\xc3", b"\xcb" + bytes(8), array_of(2, (1,), b"\0")])
    def test_a_key_that_is_not_a_str_is_refused(self, key: bytes) -> None:
        assert "not a str" in refusal(file_of(b"\x81" + key + b"\x01"))

    @pytest.mark.parametrize("key", [b"\x90", b"\x80"])
    def test_a_key_that_is_a_container_is_refused(self, key: bytes) -> None:
        refusal(file_of(b"\x81" + key + b"\x01"))

    @pytest.mark.parametrize("root", [b"\x90", b"\xc0", b"\x01", b"\xa1a", array_of(2, (1,), b"\0")])
    def test_a_root_that_is_not_a_dict_is_refused(self, root: bytes) -> None:
        assert "not a dict" in refusal(file_of(root))

    def test_an_empty_payload_is_refused(self) -> None:
        assert "left" in refusal(file_of(b""))

    @pytest.mark.parametrize("tail", [b"\0", b"\xc0", b"\x80"])
    def test_bytes_after_the_tree_are_refused(self, tail: bytes) -> None:
        assert "1 bytes follow the end" in refusal(file_of(b"\x80" + tail))

    @pytest.mark.parametrize(
        "value",
        [
            pytest.param(b"\xc1", id="never used"),
            pytest.param(b"\xc4\x01x", id="bin8"),
            pytest.param(b"\xc5\x00\x01x", id="bin16"),
            pytest.param(b"\xc6\x00\x00\x00\x01x", id="bin32"),
            pytest.param(b"\xca" + bytes(4), id="float32"),
            pytest.param(b"\xd6\xff" + bytes(4), id="timestamp32"),
            pytest.param(b"\xd7\xff" + bytes(8), id="timestamp64"),
            pytest.param(b"\xc7\x0c\xff" + bytes(12), id="timestamp96"),
            pytest.param(b"\xd4\x01x", id="fixext1"),
            pytest.param(b"\xc7\x0c\x01\x02\x01\x00" + struct.pack("<Q", 1) + b"x", id="array as ext8"),
        ],
    )
    def test_a_msgpack_type_outside_the_format_is_refused(self, value: bytes) -> None:
        assert "not part of the format" in refusal(file_of(under_a(value)))

    @pytest.mark.parametrize("kind", [0, 2, 127, -1, -128])
    def test_an_unknown_extension_is_refused(self, kind: int) -> None:
        assert f"extension {kind} is not" in refusal(file_of(under_a(array_of(2, (1,), b"\0", kind=kind))))

    @pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
    def test_a_str_that_is_not_utf8_is_refused(self, text: bytes) -> None:
        assert "UTF-8" in refusal(file_of(under_a(bytes([0xA0 | len(text)]) + text)))

    @pytest.mark.parametrize("code", [0, 15, 255])
    def test_an_unknown_dtype_is_refused(self, code: int) -> None:
        assert f"dtype code {code} is not" in refusal(file_of(under_a(array_of(code, (1,), bytes(8)))))

    @pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (0,), (2**61,)])
    def test_a_shape_that_does_not_fit_the_bytes_is_refused(self, shape: tuple[int, ...]) -> None:
        assert "bytes long" in refusal(file_of(under_a(array_of(5, shape, bytes(16)))))

    @pytest.mark.parametrize("shape", [(2**32, 2**32), (2**63, 2), (2**16,) * 4, (2**64 - 1, 2**64 - 1)])
    def test_a_shape_whose_product_overflows_is_refused(self, shape: tuple[int, ...]) -> None:
        # Modulo 2**64 the first three have no elements, so that these lengths would seem right.
        assert "bytes long" in refusal(file_of(under_a(array_of(6, shape, b""))))

    @pytest.mark.parametrize("shape", [(0, 2**63), (0, 2**64 - 1), (2**40, 2**40, 0)])
    def test_an_empty_array_with_axes_beyond_counting_is_refused(self, shape: tuple[int, ...]) -> None:
        assert "cannot have the shape" in refusal(file_of(under_a(array_of(5, shape, b""))))

    def test_an_array_with_more_axes_than_numpy_has_is_refused(self) -> None:
        assert "33 axes" in refusal(file_of(under_a(array_of(2, (1,) * 33, b"\0"))))

    def test_axes_that_the_file_does_not_hold_are_refused(self) -> None:
        assert "left" in refusal(file_of(under_a(array_of(2, (1,), b"", axes=32))))

    def test_an_array_that_claims_bytes_after_it_is_refused(self) -> None:
        array = array_of(2, (1,), b"\0", length=13)
        assert "bytes long" in refusal(file_of(b"\x82\xa1a" + array + b"\xa1b\x01"))

    @pytest.mark.parametrize("padding", [b"\x01", bytes(14) + b"\x01", bytes(16)])
    def test_padding_that_hides_something_is_refused(self, padding: bytes) -> None:
        assert "padding" in refusal(file_of(under_a(array_of(2, (1,), b"\0", padding=padding))))

    @pytest.mark.parametrize("raw", [b"\x02\x00", b"\x00\xff"])
    def test_a_bool_that_is_neither_true_nor_false_is_refused(self, raw: bytes) -> None:
        assert "bool array" in refusal(file_of(under_a(array_of(1, (2,), raw))))

    @pytest.mark.parametrize("length", [0, 1, 3, 2**32, 2**64 - 1])
    def test_a_header_with_another_length_is_refused(self, length: int) -> None:
        assert "its header says" in refusal(file_of(b"\x81\xa1a\x01"[:2], length=length))


tokens = st.one_of(
    st.sampled_from([b"\x80", b"\x81", b"\x82", b"\x90", b"\x91", b"\x93", b"\xa0", b"\xa1a", b"\xa1b", b"\xc0"]),
    st.sampled_from([b"\xc9", b"\xcb", b"\xcf", b"\xd9", b"\xdb\0\0\0", b"\xdc\0", b"\xdd\0\0\0", b"\xde\0"]),
    st.sampled_from([array_of(5, (1,), bytes(8)), array_of(1, (2,), b"\0\1"), array_of(12, (0, 3), b"")]),
    st.binary(max_size=4),
)


class TestFuzz:
    """Whatever a payload holds, it is a tree that can be saved again, or `FileRefused`."""

    def check(self, payload: bytes) -> None:
        try:
            tree = decode(file_of(payload), name="x.mpk")
        except FileRefused:
            return
        assert same(loaded(tree), tree)

    @settings(deadline=None, max_examples=300)
    @given(st.binary(max_size=200))
    def test_random_bytes(self, payload: bytes) -> None:
        self.check(payload)

    @settings(deadline=None, max_examples=500)
    @given(st.lists(tokens, max_size=30))
    def test_random_msgpack(self, parts: list[bytes]) -> None:
        self.check(b"".join(parts))

    @settings(deadline=None, max_examples=200)
    @given(trees, st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4))
    def test_altered_trees(self, tree: dict[str, Any], changes: list[tuple[int, int]]) -> None:
        payload = bytearray(saved(tree)[HEADER:])
        for position, byte in changes:
            payload[position % len(payload)] = byte
        self.check(bytes(payload))

    @settings(deadline=None, max_examples=300)
    @given(st.binary(max_size=200))
    def test_random_files(self, data: bytes) -> None:
        refusal(data)
        refusal(MAGIC + data)


class TestReadFile:
    def test_a_saved_tree_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "x.mpk"
        path.write_bytes(saved(SMALL))
        assert same(read_file(path), SMALL)
        assert same(read_file(str(path)), SMALL)

    def test_arrays_in_a_file_are_aligned_and_read_only(self, tmp_path: Path) -> None:
        path = tmp_path / "x.mpk"
        path.write_bytes(saved({"odd": "abc", "x": np.ones(1000)}))
        flags = read_file(path)["x"].flags
        assert flags.aligned
        assert not flags.writeable

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileRefused, match=r"x\.mpk: missing"):
            read_file(tmp_path / "x.mpk")

    def test_a_symbolic_link_is_refused_even_to_a_good_file(self, tmp_path: Path) -> None:
        (tmp_path / "good.mpk").write_bytes(saved(SMALL))
        (tmp_path / "x.mpk").symlink_to("good.mpk")
        with pytest.raises(FileRefused, match=r"x\.mpk: a symbolic link"):
            read_file(tmp_path / "x.mpk")

    def test_a_named_pipe_is_refused_without_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "x.mpk")
        with pytest.raises(FileRefused, match="not a regular file"):
            read_file(tmp_path / "x.mpk")

    def test_a_socket_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("x.mpk")
            with pytest.raises(FileRefused, match="not a regular file"):
                read_file("x.mpk")

    @pytest.mark.parametrize("path", ["/dev/zero", "/"])
    def test_a_device_or_directory_is_refused(self, path: str) -> None:
        with pytest.raises(FileRefused, match="not a regular file"):
            read_file(path)

    def test_a_file_over_the_cap_is_refused_unread(self, tmp_path: Path) -> None:
        path = tmp_path / "x.mpk"
        path.write_bytes(file_of(b"", length=MAX_FILE))
        os.truncate(path, MAX_FILE + 1)
        with pytest.raises(FileRefused, match="at most"):
            read_file(path)

    def test_a_large_file_without_our_header_is_refused_before_memory_is_taken(self, tmp_path: Path) -> None:
        path = tmp_path / "x.mpk"
        path.touch()
        os.truncate(path, MAX_FILE)
        tracemalloc.start()
        try:
            with pytest.raises(FileRefused, match="not a rekindle file"):
                read_file(path)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()

    def test_a_file_cut_while_it_is_read_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "x.mpk"
        path.write_bytes(saved(SMALL))
        check = codec._check_prefix

        def check_then_cut(*arguments: Any) -> None:
            check(*arguments)
            os.truncate(path, 60)

        monkeypatch.setattr(codec, "_check_prefix", check_then_cut)
        with pytest.raises(FileRefused, match="ended after 60 of"):
            read_file(path)

    def test_what_the_file_system_refuses_is_a_storage_error(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="cannot be read") as caught:
            read_file(tmp_path / ("x" * 1000))
        assert caught.value.errno == errno.ENAMETOOLONG

    def test_no_descriptor_is_left_open(self, tmp_path: Path) -> None:
        path = tmp_path / "x.mpk"
        before = len(os.listdir("/proc/self/fd"))
        for data in (saved(SMALL), saved(SMALL)[:-1], b""):
            path.write_bytes(data)
            try:
                read_file(path)
            except FileRefused:
                continue
        assert len(os.listdir("/proc/self/fd")) == before

    def test_too_little_memory_is_a_storage_error(self, tmp_path: Path) -> None:
        path = tmp_path / "x.mpk"
        length = 4 << 30
        path.write_bytes(MAGIC + struct.pack("<IQ", 1, length))
        os.truncate(path, HEADER + length)
        script = """
            import resource, sys
            from rekindle.storage.codec import read_file
            from rekindle.errors import StorageError
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
            try:
                read_file(sys.argv[1])
            except StorageError as error:
                print(error)
        """
        command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert f"{path}: not enough memory" in done.stdout


class TestTreeDigest:
    def test_the_order_of_keys_does_not_count(self) -> None:
        assert tree_digest({"a": 1, "b": {"c": 2, "d": 3}}) == tree_digest({"b": {"d": 3, "c": 2}, "a": 1})

    def test_the_order_of_a_list_counts(self) -> None:
        assert tree_digest({"a": [1, 2]}) != tree_digest({"a": [2, 1]})

    def test_values_that_depend_on_the_clock_do_not_count_at_any_depth(self) -> None:
        one = {"wall_time": 1.0, "s": [{"time/update": 1, "x": 1}], "wall_time_2": 0}
        other = {"wall_time": None, "s": [{"time/act": [3], "x": 1}], "wall_time_2": 0}
        assert tree_digest(one) == tree_digest(other)

    @pytest.mark.parametrize("key", ["wall_time_2", "my_wall_time", "time", "times/x", "a/time/x"])
    def test_keys_that_only_resemble_those_of_the_clock_count(self, key: str) -> None:
        assert tree_digest({key: 1}) != tree_digest({key: 2})

    def test_another_skip_replaces_the_rule(self) -> None:
        skip = "host".__eq__
        assert tree_digest({"host": 1}, skip=skip) == tree_digest({"host": 2}, skip=skip)
        assert tree_digest({"wall_time": 1}, skip=skip) != tree_digest({"wall_time": 2}, skip=skip)

    def test_a_key_that_is_skipped_may_hold_anything(self) -> None:
        assert tree_digest({"wall_time": object()}) == tree_digest({})

    def test_values_that_python_or_numpy_call_equal_differ_if_their_type_or_bits_do(self) -> None:
        values = [
            *(
                1,
                1.0,
                True,
                "1",
                0,
                0.0,
                -0.0,
                False,
                None,
                "",
                [],
                {},
                [None],
                [[]],
                [0],
                [0.0],
                [1],
                {"a": 1},
            ),
            *(float("nan"), struct.unpack(">d", b"\x7f\xf8\0\0\0\0\0\1")[0]),
            *(np.array(1, dtype) for dtype in ("i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "?")),
            *(np.zeros(shape) for shape in ((), (1,), (0,), (0, 1), (1, 0), (1, 1), (2,), (1, 2), (2, 1))),
            *(np.array([-0.0]), np.array([np.nan]), np.array([-np.nan])),
        ]
        digests = {tree_digest({"x": value}) for value in values}
        assert len(digests) == len(values)

    def test_what_is_next_to_each_other_does_not_run_together(self) -> None:
        pairs = [
            ({"x": ["ab", "c"]}, {"x": ["a", "bc"]}),
            ({"x": [[1], 2]}, {"x": [[1, 2]]}),
            ({"x": [[], [1]]}, {"x": [[1], []]}),
            ({"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}),
            ({"ab": "c"}, {"a": "bc"}),
            ({"x": [np.zeros(1), np.zeros(2)]}, {"x": [np.zeros(2), np.zeros(1)]}),
        ]
        for left, right in pairs:
            assert tree_digest(left) != tree_digest(right)

    def test_the_memory_layout_of_an_array_does_not_count(self) -> None:
        array = np.arange(6.0).reshape(2, 3)
        layouts = [array, np.asfortranarray(array), array.astype(">f8"), np.repeat(array, 2, axis=0)[::2]]
        assert len({tree_digest({"x": layout}) for layout in layouts}) == 1

    @settings(deadline=None)
    @given(trees)
    def test_a_tree_that_was_saved_and_loaded_has_the_same_digest(self, tree: dict[str, Any]) -> None:
        assert tree_digest(loaded(tree)) == tree_digest(tree)

    @settings(deadline=None)
    @given(trees, trees)
    def test_two_trees_have_equal_digests_if_and_only_if_they_are_the_same(
        self, left: dict[str, Any], right: dict[str, Any]
    ) -> None:
        assert (tree_digest(left) == tree_digest(right)) == same(left, right)

    def test_what_cannot_be_saved_has_no_digest(self) -> None:
        with pytest.raises(StateError, match=r"^x\[0\] is a tuple"):
            tree_digest({"x": [()]})


class TestListsOfNumbers:
    numbers = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans()

    @given(numbers=st.lists(numbers) | st.lists(st.lists(numbers)) | st.lists(st.lists(st.lists(numbers))))
    def test_are_encoded_as_plain_msgpack(self, numbers: list[Any]) -> None:
        data = b"".join(encode({"numbers": numbers}))

        assert data.endswith(msgspec.msgpack.encode({"numbers": numbers}))
        assert repr(decode(data, name="numbers")) == repr({"numbers": numbers})

    def test_count_towards_the_limit_of_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(codec, "MAX_NODES", 10)
        encode({"pairs": [[1, 2], [3, 4]], "x": 0})

        with pytest.raises(StateError, match="more brings the tree over 10 values"):
            encode({"pairs": [[1, 2], [3, 4]], "more": [5, 6, 7]})

    def test_name_the_number_that_is_too_large(self) -> None:
        with pytest.raises(StateError, match=r"pairs\[1\]\[0\] is an int beyond 64 bits"):
            encode({"pairs": [[1, 2], [2**64, 4]]})
