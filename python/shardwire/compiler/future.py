"""The handle of one run of a compiled op."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import asyncio

    import torch

Seconds = Union[float, int, timedelta, None]

# Counts the forks that led to this process: transfers run in the process that started them, not in its children.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def as_seconds(timeout: Seconds, what: str = "timeout") -> float | None:
    """``timeout`` in seconds; None stays None. Raises TypeError for other types, ValueError for a negative time or
    NaN."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise TypeError(f"{what} is a {type(timeout).__name__}; give seconds (float), a timedelta or None")
    if not seconds >= 0:
        raise ValueError(f"{what} is {timeout}; give a time that is not negative")
    return seconds


class Future:
    """One run under way. Made by calling a compiled op; returned at once.

    Dropping a Future waits: ``op(inputs, outputs)`` as a statement ends with the transfer. Keep the Future to do other
    work meanwhile. When a dropped Future ends in an error that was never raised, the error is printed on stderr, since
    a destructor cannot raise. Usable from any thread. Tensors given to the call stay alive until the transfer ends.
    """

    __slots__ = ("_work", "_seen", "_waited", "_forks", "__weakref__")

    def __init__(self, work: Any) -> None:
        self._work = work
        # The caller has the outcome: there is nothing left to wait for or to print
        self._seen = False
        self._waited = False  # streams wait for the transfer, so no thread need wait again
        self._forks = _forks

    def wait(self, timeout: Seconds = None) -> None:
        """Blocks until the transfer is over (the GIL is free meanwhile).

        Tensors on accelerators, and no timeout: the current streams of the devices wait for the transfer instead. So
        later work in the streams comes after the transfer, and the CPU goes on at once. The CPU waits for the
        transfer's CPU tensors, and for all of the transfer where devices have no stream gates, as on CUDA. See
        :meth:`synchronize`.

        timeout: seconds or a timedelta; TimeoutError when the timeout passes first, and the transfer goes on. None:
            waits until the operation's own timeout. Raises the operation's error if the operation failed.
        """
        if timeout is None:
            self._seen = True
            self._seen = self._work.wait(None)
            self._waited = True
            return
        self._wait_by(self._work.wait, as_seconds(timeout))

    def synchronize(self, timeout: Seconds = None) -> None:
        """Blocks the CPU until the transfer is over, on accelerators too. timeout and errors as for :meth:`wait`."""
        self._wait_by(self._work.synchronize, None if timeout is None else as_seconds(timeout))

    def _wait_by(self, wait: Callable[[float | None], Any], seconds: float | None) -> None:
        try:
            wait(seconds)
        except TimeoutError:
            self._seen = self._work.exception() is not None  # else only the wait is over
            raise
        except BaseException:
            self._seen = True  # the caller has the error, or was interrupted and waits no more
            raise
        self._seen = True

    def leave(self) -> None:
        """Gives the transfer up: no caller waits for the end or the error, and dropping the Future does not wait. For
        an interrupted caller."""
        self._seen = True

    def done(self) -> bool:
        """Whether the transfer is over, with or without an error. Never blocks."""
        return self._work.done()

    is_completed = done

    def exception(self) -> BaseException | None:
        """The operation's error; None while it runs and after success. Never blocks."""
        error = self._work.exception()
        if error is not None:
            self._seen = True
        return error

    def result(self, timeout: Seconds = None) -> list[torch.Tensor]:
        """The output tensors, after :meth:`wait`."""
        self.wait(timeout)
        return list(self._work.get_future().wait())

    def get_future(self) -> torch.futures.Future:
        """The Future as a c10 future, for ``then``, ``torch.futures.collect_all`` and the like, as returned by
        ``get_future`` of torch.distributed's works (``torch._C.Future``, the class behind ``torch.futures.Future``).
        The value is the list of output tensors.
        """
        return self._work.get_future()

    def __await__(self) -> Generator[Any, None, None]:
        """``await future``: like :meth:`wait`, without blocking the event loop."""
        if not self._work.done():
            import asyncio  # here: asyncio takes longer to load than this whole package
            loop = asyncio.get_running_loop()
            arrived: asyncio.Future[None] = loop.create_future()
            # torch runs the callback on the thread that ends the transfer; asyncio's future belongs to the loop's
            # thread.
            self._work.get_future().add_done_callback(lambda _: wake(loop, arrived))
            yield from arrived
        self.synchronize()

    def __repr__(self) -> str:
        return f"<shardwire.Future {'done' if self._work.done() else 'running'}>"

    def __del__(self) -> None:
        try:
            if self._seen or self._forks != _forks:
                return
            if not self._waited:
                self._work.wait(None)
            elif (error := self._work.exception()) is not None:
                print_lost("a Future was dropped and its operation", error)
        except AttributeError:
            # __init__ did not finish, or the interpreter is removing modules
            pass
        except KeyboardInterrupt:
            _interrupt_later()
        except BaseException as error:  # noqa: B902: nothing may leave a destructor
            print_lost("a Future was dropped and its operation", error)


def _interrupt_later() -> None:
    """Ctrl-C while a destructor waits: an exception raised in a destructor would be lost. So the main thread gets
    Ctrl-C again, after the destructor."""
    try:
        threading.Timer(0.02, _thread.interrupt_main).start()
    except RuntimeError:
        pass  # no threads at interpreter exit: the program ends anyway


def wake(loop: asyncio.AbstractEventLoop, arrived: asyncio.Future[None]) -> None:
    """Lets the loop's thread set the future, once. From any thread."""
    try:
        loop.call_soon_threadsafe(_set, arrived)
    except RuntimeError:
        pass  # the loop was closed meanwhile: no task awaits any more


async def in_thread(call: Callable[[], Any]) -> Any:
    """The result or error of `call`. A task cancelled meanwhile leaves the thread to end by itself."""
    import asyncio
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: B902: the waiting task raises the error
            failed.append(error)
        wake(loop, over)
    threading.Thread(target=run, name="shardwire-await", daemon=True).start()
    await over
    if failed:
        raise failed[0]
    return found[0]


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


def print_lost(what: str, error: BaseException) -> None:
    """Prints the error of an operation whose handle was dropped, from a destructor."""
    try:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        sys.stderr.write(f"shardwire: {what} failed; nobody saw this error:\n  {text}\n")
    except BaseException:  # noqa: B902: stderr may be gone at interpreter exit
        pass


