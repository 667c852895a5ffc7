"""Messages and descriptors between processes: whole or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from loaderd.core.jobs import Done, Job
from loaderd.engine.channel import PACKET, Channel, ChannelClosed, pair
from loaderd.engine.messages import Forked, MapSegment, SegmentUnmapped, WorkerBooted, WorkerFault
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Segment

Ends = tuple[Channel, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = pair()
    made = Channel(one, blocking=False), Channel(other, blocking=False)
    yield made
    for end in made:
        end.close()


def test_messages_arrive_as_they_were_sent_in_order(ends: Ends) -> None:
    job = Job(3, 0, "train", 1, 2, 7, 0, 100, 8, 0, 4)
    done = Done(3, (), (), 64, 10, 0.1, 0.2, 0.3, 0.4, changed="")
    for message in (job, done, WorkerBooted()):
        ends[0].send(message)
    assert [ends[1].receive() for _ in range(4)] == [
        (job, []),
        (done, []),
        (WorkerBooted(), []),
        None,
    ]


def test_a_message_larger_than_a_packet_arrives_whole(ends: Ends) -> None:
    text = "x" * (PACKET * 15)
    ends[0].send(WorkerFault(text))
    ends[0].send(WorkerBooted())
    got = []
    while len(got) < 2:
        ends[0].flush()
        if (received := ends[1].receive()) is not None:
            got.append(received[0])
    assert got == [WorkerFault(text), WorkerBooted()]
    assert ends[0].unsent == 0


def test_what_does_not_fit_waits_without_blocking(ends: Ends) -> None:
    ends[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for number in range(500):
        ends[0].send(SegmentUnmapped(number))
    assert ends[0].unsent > 0
    got: list[int] = []
    while len(got) < 500:
        ends[0].flush()
        while (received := ends[1].receive()) is not None:
            assert isinstance(received[0], SegmentUnmapped)
            got.append(received[0].segment)
    assert got == list(range(500))


def test_descriptors_travel_with_their_message_and_are_closed_on_exec(ends: Ends) -> None:
    read, write = os.pipe()
    order = MapSegment(Segment(1, 2, 4096, 0, 0), (), 1, False)
    ends[0].send(order, (write,))
    os.close(write)
    received = ends[1].receive()
    assert received is not None
    message, fds = received
    assert message == order
    assert not os.get_inheritable(fds[0])
    os.write(fds[0], b"through")
    os.close(fds[0])
    assert os.read(read, 100) == b"through"
    assert os.read(read, 100) == b""  # nobody kept the other end
    os.close(read)


def test_descriptors_that_nobody_asked_for_are_closed_by_the_kernel() -> None:
    one, other = pair()
    sender, receiver = Channel(one, blocking=False), Channel(other, blocking=False, takes_fds=False)
    read, write = os.pipe()
    sender.send(Forked(1, 2), (write,))
    os.close(write)
    assert receiver.receive() == (Forked(1, 2), [])
    assert os.read(read, 100) == b""
    os.close(read)
    sender.close()
    receiver.close()


def test_a_closed_other_side_is_told_on_both_ways(ends: Ends) -> None:
    ends[0].send(WorkerBooted())
    ends[0].close()
    assert ends[1].receive() == (WorkerBooted(), [])
    with pytest.raises(ChannelClosed):
        ends[1].receive()
    with pytest.raises(ChannelClosed):
        ends[1].send(WorkerBooted())


@pytest.mark.parametrize(
    "packet", [b"\0", b"\0garbage", b"\0\xc1", b"\0\x91\x7f", b"\0\x92\x20\x01"]
)
def test_nonsense_is_a_protocol_error_and_nothing_else(ends: Ends, packet: bytes) -> None:
    ends[0].sock.send(packet)
    with pytest.raises(ProtocolError):
        ends[1].receive()


def test_a_message_without_end_is_a_protocol_error(ends: Ends) -> None:
    with pytest.raises(ProtocolError):  # noqa: PT012 - it takes many packets
        for _ in range(1000):
            ends[0].sock.send(b"\1" + b"x" * PACKET)
            ends[1].receive()


def test_close_gives_back_what_was_still_to_go_out() -> None:
    one, other = pair()
    end = Channel(one, blocking=False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    read, write = os.pipe()
    while not end.unsent:
        end.send(Forked(1, 2))
    end.send(Forked(1, 2), (write,))
    os.close(write)
    end.close()
    other.close()
    assert os.read(read, 1) == b""
    os.close(read)
