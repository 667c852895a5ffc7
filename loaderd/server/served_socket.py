"""The socket that a daemon serves: its lock, and where connections and messages come in.

It is taken where nobody has it, or gets over from a daemon to its successor, which runs beside it
for a moment. Both hold the lock then, by copies of one descriptor, and listen at one socket: it is
never free, and no connection is refused.
"""

from __future__ import annotations

from contextlib import ExitStack

from loaderd.system.control_socket import ControlListener
from loaderd.system.lockfile import LockFile
from loaderd.system.zmq_router import MessageRouter


class ServedSocket:
    """Lock, listener and router of one path."""

    def __init__(
        self,
        path: str,
        lock: LockFile | None,
        locks: ExitStack,
        control: ControlListener,
        messages: MessageRouter,
    ) -> None:
        """Change nothing yet.

        Args:
            path: Of the control socket.
            lock: Its lock, if it is ours; else neither `control` nor `messages` listens.
            locks: Closes a lock that is taken later.
            control: Where clients come.
            messages: Where sessions send and receive messages.
        """
        self._path = path
        self._lock = lock
        self._locks = locks
        self._control = control
        self._messages = messages

    # -- as the successor

    def take(self) -> None:
        """Serve it, where nobody does.

        Raises:
            AlreadyServed: Another daemon does.
            CannotServe: Something else is in the way.
            OSError: It can't be bound.
        """
        self._lock = self._locks.enter_context(LockFile(self._path))
        self._control.listen()
        self._messages.bind()

    def adopt(self, lock: int, listener: int) -> None:
        """Serve it beside the daemon that does.

        Args:
            lock: Descriptor of its lock, ours from now on.
            listener: Descriptor of its socket, likewise.

        Raises:
            OSError: It can't be.
        """
        self._lock = self._locks.enter_context(LockFile(self._path, lock))
        self._control.listen(listener)
        self._messages.bind()

    def hold_alone(self) -> None:
        """After `adopt`: the daemon before has ended, or wants it back.

        Raises:
            AlreadyServed: It serves; nothing of it is touched from now on.
        """
        assert self._lock is not None
        self._yield_files()
        self._lock.retake()
        self._lock.take_back()
        assert self._control.listener is not None
        self._control.listener.take_back()

    def sweep(self) -> None:
        """The daemon before has ended, perhaps by a kill: remove what it may have left."""
        self._messages.sweep_aside()

    # -- as the daemon before

    def offer(self) -> tuple[int, int]:
        """What `adopt` of another process needs: (lock, listener).

        Everything goes on here. `hand_over` or `take_back` follows.

        Raises:
            OSError: It can't be offered.
        """
        assert self._lock is not None
        assert self._control.listener is not None
        self._messages.set_aside()
        return self._lock.fd, self._control.listener.fd

    def hand_over(self) -> None:
        """The successor serves: take no connections, and leave the files alone."""
        self._yield_files()

    def take_back(self) -> None:
        """There is no successor: everything is as before `offer`."""
        assert self._lock is not None
        assert self._control.listener is not None
        self._messages.take_back()
        self._lock.take_back()
        self._control.listener.take_back()

    def _yield_files(self) -> None:
        assert self._lock is not None
        assert self._control.listener is not None
        self._lock.lend()
        self._control.listener.lend()
