"""Messages to bytes and back: frozen bytes, every message, and nothing but a ProtocolError for
anything else.
"""

from __future__ import annotations

import itertools
import sys
import types
import typing
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_wire import codec
from loaderd_wire import messages as m
from loaderd_wire.codec import (
    LENGTH,
    MAX_INT,
    MAX_ITEMS,
    MAX_MESSAGE,
    MAX_TEXT,
    WIRE,
    frame,
    unframe,
)
from loaderd_wire.errors import BadSample, ProtocolError
from loaderd_wire.slots import Chunk, FieldSpec

SEGMENT = m.Segment(3, 6, 8192, 64, 0)
BAD = BadSample(7, "cat.jpg", 3, "decode", "ValueError", "no JPEG", "Traceback", None)
EXAMPLES: tuple[m.Message, ...] = (
    m.Hello(1, "train", 256, None, True, 1, 4, 4, ("image", "label"), 0, {"seed": "0"}, {}, "/data/train.toml"),
    m.Starting("counting train"),
    m.Rejected("ConfigError", "no stream 'tain'"),
    m.Welcome(
        5, b"\x01\x02\x03\x04", "loaderd 0.1.0", 1000, 256, 0, True,
        (FieldSpec("image", "|u1", (224, 224, 3), "array", True), FieldSpec("label", "<i8", ())),
        "dict", False, "stored", SEGMENT, {"seed": "0"}, {"collate": "stack"}, ("cat", "dog"), "skip", 0.01, "deliver", ("old",),
    ),
    SEGMENT,
    m.Bye("drained"),
    m.Ask(1, "status"),
    m.Report('{"streams": []}'),
    m.Progress(5, 9, 2, 1, 512, 2, 3, 4, False, True, False, (m.Released(3, (1, 2, 0), (2, 2, 0)),), True),
    m.Descriptor(5, 2, 4, 1, 512, 256, 3, 1, 7, 255, False, (Chunk(0, 256, 4096, 17),), (BAD,)),
    m.Pulse(5, 9, 12345, 40, "batch 4 waits for worker 2", ""),
    m.Failure(5, "StreamFailed", "101 bad samples"),
)  # fmt: skip


def strategy_for(hint: Any) -> st.SearchStrategy[Any]:
    """All values that a field of this annotation may have."""
    if isinstance(hint, type) and is_dataclass(hint):
        return st.builds(
            hint, **{name: strategy_for(kind) for name, kind in typing.get_type_hints(hint).items()}
        )
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(strategy_for(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
    if origin in (types.UnionType, typing.Union):
        return st.none() | strategy_for(args[0])
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, MAX_INT),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=9),
        bytes: st.binary(max_size=9),
        bool: st.booleans(),
    }
    return plain[hint]


messages = st.one_of([strategy_for(cls) for cls in typing.get_args(m.Message)])
wild = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=15)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=25,
)


def decode_or_refuse(data: bytes) -> None:
    try:
        message = WIRE.decode(data)
    except ProtocolError as error:
        complaint = str(error)
    else:
        complaint = ""
        assert isinstance(message, typing.get_args(m.Message))
        WIRE.encode(message)
    assert len(complaint) < 400, "an error repeats what a peer sent"


def test_there_is_an_example_of_every_message() -> None:
    assert [type(example) for example in EXAMPLES] == sorted(
        typing.get_args(m.Message), key=[type(example) for example in EXAMPLES].index
    )
    assert len(EXAMPLES) == len(typing.get_args(m.Message)) == len(GOLDEN)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_the_bytes_of_a_message_have_not_changed_since_they_were_frozen(example: m.Message) -> None:
    frozen = bytes.fromhex(GOLDEN[type(example).__name__])
    assert WIRE.encode(example) == frozen
    assert WIRE.decode(frozen) == example


def test_a_field_that_was_added_is_sent_only_where_an_earlier_version_would_go_wrong() -> None:
    (welcome,) = [one for one in EXAMPLES if isinstance(one, m.Welcome)]
    short = replace(welcome, tail="short")
    old, new = (msgpack.unpackb(WIRE.encode(one)) for one in (welcome, short))
    assert new == [*old, "short"]
    assert WIRE.decode(msgpack.packb(new)) == short
    several = replace(welcome, parts=("a.lmdb", "b.lmdb"), firsts=(7,))
    newest = msgpack.unpackb(WIRE.encode(several))
    assert newest == [*old, "repeat", [], [], ["a.lmdb", "b.lmdb"], [7]]
    assert WIRE.decode(msgpack.packb(newest)) == several
    for wrong in ([*newest, 5, True, "more"], old[:-1]):
        with pytest.raises(ProtocolError, match="expected the 26 fields of Welcome"):
            WIRE.decode(msgpack.packb(wrong))
    with pytest.raises(ProtocolError, match="expected str"):
        WIRE.decode(msgpack.packb([*old, 3]))


def test_an_earlier_daemon_or_client_is_not_told_of_shared_batches_unless_it_asked() -> None:
    (hello,) = [one for one in EXAMPLES if isinstance(one, m.Hello)]
    (welcome,) = [one for one in EXAMPLES if isinstance(one, m.Welcome)]
    old = msgpack.unpackb(WIRE.encode(hello))
    assert msgpack.unpackb(WIRE.encode(replace(hello, shared="no"))) == [*old, "no"]
    assert WIRE.decode(msgpack.packb([*old, "yes"])) == replace(hello, shared="yes")
    assert WIRE.decode(msgpack.packb(old)).shared == ""
    old = msgpack.unpackb(WIRE.encode(welcome))
    new = msgpack.unpackb(WIRE.encode(replace(welcome, shared=True)))
    assert new == [*old, "repeat", [], [], [], [], False, True]
    assert WIRE.decode(msgpack.packb(old)).shared is False


def test_how_long_a_client_waited_and_the_verdict_are_sent_only_where_they_are_said() -> None:
    for cls, said in ((m.Progress, {"waited_s": 2.5}), (m.Descriptor, {"verdict": "idle: no"})):
        (usual,) = [one for one in EXAMPLES if isinstance(one, cls)]
        more: Any = replace(usual, **said)
        assert WIRE.decode(WIRE.encode(more)) == more
        assert len(msgpack.unpackb(WIRE.encode(more))) == 1 + len(
            msgpack.unpackb(WIRE.encode(usual))
        )


@given(messages)
def test_every_message_arrives_as_it_was_sent(message: m.Message) -> None:
    assert WIRE.decode(WIRE.encode(message)) == message
    buffer = bytearray(frame(message) + b"\x00")
    assert unframe(buffer) == message
    assert buffer == b"\x00"


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_has_arrived_is_a_frozen_record_like_any_other(example: m.Message) -> None:
    arrived = WIRE.decode(WIRE.encode(example))
    assert type(arrived) is type(example)
    assert repr(arrived) == repr(example)
    with pytest.raises(FrozenInstanceError):
        setattr(arrived, fields(example)[0].name, 0)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_protocol_error_and_nothing_else(data: bytes) -> None:
    decode_or_refuse(data)


@given(wild)
def test_any_other_structure_is_a_protocol_error_and_nothing_else(value: Any) -> None:
    decode_or_refuse(msgpack.packb(value))


@given(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 18, 19]), st.lists(wild, max_size=18))
def test_a_true_code_with_false_fields_is_a_protocol_error_and_nothing_else(
    code: int, body: list[Any]
) -> None:
    decode_or_refuse(msgpack.packb([code, *body]))


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_message_with_one_field_exchanged_is_refused_or_well_formed(
    example: m.Message, data: st.DataObject
) -> None:
    body = msgpack.unpackb(WIRE.encode(example))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(wild)
    decode_or_refuse(msgpack.packb(body))


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_message_with_bytes_flipped_cut_or_added_is_refused_or_well_formed(
    example: m.Message, data: st.DataObject
) -> None:
    encoded = bytearray(WIRE.encode(example))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    decode_or_refuse(bytes(encoded))
    decode_or_refuse(bytes(encoded[:cut]))
    decode_or_refuse(bytes(encoded) + b"\xc0")


@given(st.lists(st.sampled_from(EXAMPLES), max_size=4), st.data())
def test_framed_messages_come_out_whole_however_the_bytes_are_cut(
    sent: list[m.Message], data: st.DataObject
) -> None:
    stream = b"".join(map(frame, sent))
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8))), len(stream)]
    buffer, arrived = bytearray(), []
    for begin, end in itertools.pairwise(cuts):
        buffer += stream[begin:end]
        while (message := unframe(buffer)) is not None:
            arrived.append(message)
    assert arrived == sent
    assert not buffer


@given(st.binary(max_size=300))
def test_random_bytes_on_a_control_socket_are_a_protocol_error_or_wait_for_more(
    data: bytes,
) -> None:
    buffer = bytearray(data)
    for _ in range(len(data)):
        before = len(buffer)
        try:
            if unframe(buffer) is None:
                break
        except ProtocolError:
            break
        assert len(buffer) < before, "a message that takes no bytes would be read for ever"


def test_a_frame_that_claims_to_be_huge_is_refused_before_it_arrives() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        unframe(bytearray(LENGTH.pack(MAX_MESSAGE + 1)))
    assert unframe(bytearray(LENGTH.pack(MAX_MESSAGE) + b"abc")) is None


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not a message"),
        (b"\xc0", "expected an array"),
        (b"\x90", "unknown message code"),
        (b"\x91\x00", "unknown message code int 0"),
        (b"\x91\xc3", "unknown message code bool"),
        (b"\x91\x02", "the 1 fields of Starting, not 0"),
        (b"\x92\x02\x05", "expected str, not int 5"),
        (b"\x93\x02\xa1x\xa1y", "the 1 fields of Starting, not 2"),
        (b"\x92\x02\xa1x\xc0", "not a message"),
        (b"\x92\x02\xa1\xff", "not a message"),
        (b"\x92\x02\xc7\x00\x05", "expected str, not ExtType"),
        (b"\x93\x07\xff\xa6status", r"in \[0, 2\*\*62\], not int -1"),
        (b"\x93\x07\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa6status", r"2\*\*62"),
        (b"\x93\x07\xc3\xa6status", "not bool True"),
        (b"\x93\x07\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xa6status", "not float 1.0"),
        (b"\x81\x81\x01\x02\x03", "not a message"),
    ],
)
def test_what_is_wrong_with_a_message_is_named(data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        WIRE.decode(data)


@pytest.mark.parametrize("depth", [10, 400, 600, 990, 1000, 1020, 1023, 1024, 5000, 100_000])
@pytest.mark.parametrize("head", [b"", b"\x91", b"\x92\x02", b"\x94\x10\x01"])
def test_nesting_without_end_is_a_protocol_error_and_no_crash(depth: int, head: bytes) -> None:
    with pytest.raises(ProtocolError):
        WIRE.decode(head + b"\x91" * depth + b"\x01")


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_a_claim_of_four_gigabytes_allocates_nothing(claim: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        WIRE.decode(claim + b"x")


def test_sizes_are_bounded_on_the_way_in_and_out() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        WIRE.decode(b"\x92\x02" + b"x" * MAX_MESSAGE)
    with pytest.raises(ProtocolError, match="over the limit"):
        WIRE.encode(m.Rejected("x" * MAX_MESSAGE, ""))
    with pytest.raises(ProtocolError, match="not a message"):
        WIRE.decode(msgpack.packb([2, "x" * (MAX_TEXT + 1)]))
    with pytest.raises(ProtocolError, match="not a message"):
        WIRE.decode(msgpack.packb([2, [0] * (MAX_ITEMS + 1)]))
    assert WIRE.decode(WIRE.encode(m.Starting("x" * MAX_TEXT))) == m.Starting("x" * MAX_TEXT)


def test_a_name_that_is_no_text_arrives_spelled_out() -> None:
    assert WIRE.decode(WIRE.encode(m.Starting("caf\udce9.jpg"))) == m.Starting("caf\\udce9.jpg")


def test_what_is_no_message_cannot_be_sent() -> None:
    with pytest.raises(KeyError):
        WIRE.encode(BAD)
    with pytest.raises(TypeError, match="cannot be sent"):
        WIRE.encode(m.Starting(object()))  # type: ignore[arg-type] - the point of the test


def test_a_part_has_the_fields_that_its_message_checks() -> None:
    for part in (FieldSpec, Chunk, BadSample, m.Released):
        assert is_dataclass(part)
        assert all(field.init for field in fields(part))


GOLDEN: dict[str, str] = {
    "Hello": (
        "9e0101a5747261696ecd0100c0c301040492a5696d616765a56c6162656c0081a473656564a13080b02f646174612f747261696e2e746f6d6c"
    ),
    "Starting": "9202ae636f756e74696e6720747261696e",
    "Rejected": "9303ab436f6e6669674572726f72b06e6f2073747265616d20277461696e27",
    "Welcome": (
        "dc00140405c40401020304ad6c6f616465726420302e312e30cd03e8cd010000c39295a5696d616765a37c753193cce0cce003a56172726179c395a5"
        "6c6162656ca33c693890a56172726179c2a464696374c2a673746f726564950306cd2000400081a473656564a13081a7636f6c6c617465a573746163"
        "6b92a3636174a3646f67a4736b6970cb3f847ae147ae147ba764656c6976657291a36f6c64"
    ),
    "Segment": "96050306cd20004000",
    "Bye": "9206a7647261696e6564",
    "Ask": "930701a6737461747573",
    "Report": "9208af7b2273747265616d73223a205b5d7d",
    "Progress": "9e1005090201cd0200020304c2c3c29193039301020093020200c3",
    "Descriptor": (
        "9e1105020401cd0200cd0100030107ccffc2919400cd0100cd100011919807a76361742e6a706703a66465636f6465aa56616c75654572726f72a76e"
        "6f204a504547a954726163656261636bc0"
    ),
    "Pulse": "97120509cd303928ba6261746368203420776169747320666f7220776f726b65722032a0",
    "Failure": "941305ac53747265616d4661696c6564af313031206261642073616d706c6573",
}


def test_what_a_signal_handler_raises_meanwhile_is_no_error_of_the_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise ValueError("by a handler")

    monkeypatch.setattr(codec, "unpackb", interrupted)
    with pytest.raises(ValueError, match="by a handler"):
        WIRE.decode(b"\x90")


def test_a_codec_goes_on_wherever_a_signal_handler_has_ended_its_first_use() -> None:
    message = m.Progress(
        5, 9, 2, 1, 512, 2, 3, 4, False, True, False, (m.Released(3, (1, 2, 0), (2, 2, 0)),), True
    )
    calls = last = 0

    def interrupt(frame: types.FrameType, what: str, _: object) -> None:
        nonlocal calls
        if what == "call" and frame.f_code.co_filename == codec.__file__:
            calls += 1
            if calls == last:
                raise InterruptedError

    def uses(codec: codec.Codec) -> Any:
        return codec.decode(codec.encode(message))

    while calls >= last:
        calls, last = 0, last + 1
        fresh = codec.Codec({9: m.Progress}, (m.Released,))
        sys.setprofile(interrupt)
        try:
            uses(fresh)
        except InterruptedError:
            pass
        finally:
            sys.setprofile(None)
        assert uses(fresh) == message, last
    assert last > 10  # and all calls have been met
