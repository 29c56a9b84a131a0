"""subscribe: brings another job's weights into this job's layouts, one whole version at a time."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _C
from ..compiler.future import Seconds, as_seconds, in_thread
from ..compiler.layout import kind_of
from ..errors import AbortedError, MismatchError, PeerFailedError, ShardwireError
from ..errors import TimeoutError as GroupTimeoutError
from ..compiler.agree import Attempt, Meeting
from ..groups.lookup import store_of
from ..groups.timeouts import LONGEST_S
from .fetching import FETCH, LEAVE, SLACK_S, Choice, Joint, Request, choose
from .finding import find
from .meeting_place import Address, Place
from .progress import Progress, ProgressArgument
from .publishing import as_version, own_group
from .wanted_target import Wanted

_DEFAULT_S = 1800.0
# Errors of a rank that may follow from the error of another rank of the subscriber
_CONSEQUENCES = (PeerFailedError, AbortedError, GroupTimeoutError)


def subscribe(store: Any, name: str, layouts: Any = None, group: Any = None, *, cast: torch.dtype | None = None,
              mapping: Any = None, strict: bool = True, device: Any = None, staged: bool = False,
              timeout: Seconds = None, progress: ProgressArgument = None) -> Subscription:
    """Finds the publisher ``name`` and compiles the movement from its layouts into this job's layouts; then call
    ``fetch`` as often as you like. See docs/publish.md.

    Collective: every rank of ``group`` (None: the default group, or this process alone where there is none) calls.
    Waits for a publisher.

    store: where the jobs meet, as given to :func:`publish`.
    layouts: a target as in ``sync``: a module, or a dict of Layouts (allocated), tensors, DTensors and (Layout, tensor)
        pairs. None: every tensor whole, as published, without a module's non-persistent buffers.
    cast: a floating dtype for allocated tensors of floating Layouts and meta tensors; ``None``: their own dtypes.
        Refused beside a module (TypeError), and beside a given tensor of another floating dtype (ValueError).
    mapping, strict, device: as in ``sync``; the mapping's source is the publisher.
    staged: True: versions arrive in a second copy of the target, in the shared heap, and are copied into the target
        when whole: a failed fetch leaves the target unchanged. False: versions arrive in the target itself; after a
        failed fetch the target may hold parts of two versions.
    timeout: seconds for finding the publisher, and for each fetch without a timeout; None: 30 minutes.
    progress: as for :func:`load`, for the search of the publisher and for each transfer of a version.

    Raises TimeoutError when there is no publisher or its ranks do not answer (by number), MismatchError for another
    job's token, ValueError with the names of the weights that do not fit.
    """
    meeting = Meeting(own_group(group, timeout), "subscribe", None)
    wanted: Wanted | None = None
    address: Address | None = None
    blobs = [b"", b"", b""]
    own: Any = None
    with Attempt() as attempt:  # which keeps any exception, also of a caller's mapping
        seconds = as_seconds(timeout)
        meeting.seconds = seconds
        if not isinstance(staged, bool):
            raise TypeError(f"staged is {kind_of(staged)}; give True or False")
        wanted = Wanted(layouts, cast, mapping, strict, device, staged, meeting)
        address = Address(store, name)
        Progress("", progress, 0)  # checks the argument
        # The ranks meet in the store of their own group: the publisher's store may end with the publisher at any time
        own = dist.HashStore() if len(meeting.ranks) == 1 else store_of(group)
        blobs = [secrets.token_hex(8).encode(), json.dumps([address.text, name, staged]).encode(), b""]
    everyone = meeting.exchange(blobs, attempt.error)
    assert wanted is not None and address is not None
    for rank, given in enumerate(everyone):
        if given[1] != everyone[0][1]:
            raise MismatchError(f"ranks 0 and {rank} subscribe differently: store, name, staged are "
                                f"{everyone[0][1].decode()} and {given[1].decode()}")
    limit = _DEFAULT_S if seconds is None else min(seconds, LONGEST_S)
    deadline = time.monotonic() + limit
    meets_in = dist.PrefixStore(f"shardwire.subscribe/{everyone[0][0].decode()}", own)
    control = _C.create_backend(meets_in, meeting.rank, len(everyone), timedelta(seconds=limit + SLACK_S),
                                f"subscribers of {name}", meeting.ranks)
    subscription = Subscription(address, Meeting(control, "subscribe", limit + SLACK_S, meeting.global_rank), meets_in,
                                wanted, limit, progress)
    try:
        subscription._connect(deadline)
        subscription._control.call = "fetch"  # the call that later errors name
    except BaseException:
        subscription._leave()
        raise
    return subscription


class Subscription:
    """The result of :func:`subscribe`. Every rank of the subscribing group makes the same calls, in the same order. A
    fetch from another thread waits for the running fetch."""

    def __init__(self, address: Address, control: Meeting, store: Any, wanted: Wanted, seconds: float,
                 progress: ProgressArgument) -> None:
        self._address, self._control, self._wanted, self._seconds = address, control, wanted, seconds
        self._store = store  # kept: the group uses the store, and some stores are Python objects
        self._joint: Joint | None = None
        self._publisher = ""  # the id of the joined publisher
        self._fetched_from = ""  # the id of the publisher of the fetched version
        self._version: int | None = None
        # The version in the second copy; None while the copy has no whole version
        self._staged: int | None = None
        self._closed = False
        self._progress = progress
        self._turn = threading.Lock()

    @property
    def target(self) -> Any:
        """The target module; for a dict a new dict with the local tensors and DTensors. While ``version`` is None the
        target holds no whole version: do not read the target."""
        return self._wanted.result()

    @property
    def version(self) -> int | None:
        """The whole version in the target; None before the first fetch, and (unless ``staged``) while a fetch runs and
        after a failed fetch."""
        return self._version

    def fetch(self, version: int | None = None, timeout: Seconds = None, *, newer: bool = False,
              changed: bool = False) -> int:
        """Moves one version into the target, whole, and returns its number.

        version: an int waits until the version is committed; None takes the newest version of all the publisher's
            ranks, and waits where there is none.
        newer: waits for a version after ``self.version``.
        changed: moves only the blocks changed since ``self.version``, where the publisher notes the changes
            (``changes=True``) and is still the same publisher; else everything.

        The text of an error says what the target holds. With ``staged`` the target is unchanged. Otherwise ``version``
        is None, and the target may hold parts of two versions until a fetch succeeds; but where no bytes moved yet
        (nothing in time, a version that is gone) target and version are unchanged. The next fetch joins the publisher,
        or the next publisher of the name, anew.

        Raises the same type on every rank: TimeoutError (nothing in time, ranks by number), PeerFailedError (a rank of
        either side died, named), AbortedError (the publisher closed, or ended this subscription), ValueError (a version
        that is gone).
        """
        return self._bring(version, timeout, newer, changed, applies=self._wanted.is_staged)

    async def fetch_async(self, version: int | None = None, timeout: Seconds = None, *, newer: bool = False,
                          changed: bool = False) -> int:
        """:meth:`fetch` for asyncio: the event loop goes on meanwhile. A cancelled task leaves the fetch to end by
        itself, since the other ranks take part in the fetch: no other fetch of this subscription may begin before.
        """
        return await in_thread(lambda: self.fetch(version, timeout, newer=newer, changed=changed))

    def stage(self, version: int | None = None, timeout: Seconds = None, *, newer: bool = False,
              changed: bool = False) -> int:
        """The first half of :meth:`fetch` of a ``staged`` subscription: moves one version into the second copy. The
        target may be read meanwhile, also by other threads. ``newer`` and ``changed`` count from the last staged
        version. Collective, with the errors of ``fetch``.
        """
        if not self._wanted.is_staged:
            raise ValueError(f"the subscription to {self._address.name!r} has no second copy to fetch into; subscribe "
                             "with subscribe(staged=True)")
        return self._bring(version, timeout, newer, changed, applies=False)

    def apply(self) -> int:
        """The second half: copies the staged version into the target, and returns its number. Local to this rank, at
        the speed of memory; the target must not be read meanwhile. ValueError, before anything is written, where
        nothing is staged whole, another thread is in ``stage`` or ``fetch``, or the target's tensors have changed.
        """
        if not self._turn.acquire(blocking=False):
            raise ValueError(f"another thread is in a stage or fetch of {self._address.name!r}, which writes the "
                             "second copy; call apply() after the fetch")
        try:
            return self._apply()
        finally:
            self._turn.release()

    def _apply(self) -> int:
        stage, staged = self._wanted.stage, self._staged
        if stage is None or staged is None:
            raise ValueError(f"no version of {self._address.name!r} is staged whole; call stage() first, and again "
                             "after it failed")
        stage.check()
        self._version = None
        stage.copy_to_target()
        self._version = staged
        return staged

    def _bring(self, version: int | None, timeout: Seconds, newer: bool, changed: bool, applies: bool) -> int:
        """Brings a version into the second copy, or without a second copy into the target. applies: then copies it into
        the target. One thread at a time; other threads wait."""
        seconds = self._seconds
        with Attempt() as attempt:
            given = as_seconds(timeout)
            seconds = self._seconds if given is None else min(given, LONGEST_S)
        deadline = time.monotonic() + seconds
        if not self._turn.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            raise GroupTimeoutError(f"another thread was in a fetch of {self._address.name!r} all the time; it goes on")
        try:
            found = self._bring_now(version, seconds, deadline, newer, changed, attempt.error)
            return self._apply() if applies else found
        finally:
            self._turn.release()

    def _bring_now(self, version: int | None, seconds: float, deadline: float, newer: bool, changed: bool,
                   error: Exception | None) -> int:
        if self._closed:
            raise AbortedError(f"the subscription to {self._address.name!r} was closed, or ended with a rank of this "
                               "side; make another")
        try:
            request = self._agree(version, newer, changed, seconds, error)
            if self._joint is None:
                self._connect(deadline)
            return self._fetch(request, deadline)
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the progress of the other ranks is unknown
            if self._joint is not None:
                self._joint.abort()
            self._control.backend.abort()
            self._leave()
            raise

    def close(self) -> None:
        """Leaves the publisher, which goes on. One rank's close ends the subscription for all ranks of the
        subscriber."""
        if self._closed:
            return
        self._closed = True
        joint, self._joint = self._joint, None
        if joint is not None:
            with contextlib.suppress(Exception):  # the publisher was gone before
                joint.request(Request(LEAVE) if self._control.rank == 0 else None, 1.0)
            joint.leave()
        self._control.backend.shutdown()

    def _leave(self) -> None:
        self._closed = True
        self._drop()
        self._control.backend.shutdown()

    def __enter__(self) -> Subscription:
        """``with subscribe(...) as subscription:`` closes it at the end of the block."""
        return self

    def __exit__(self, *_error: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<shardwire.Subscription {self._address.name!r}, version {self._version}>"

    # ---- steps of a fetch, the same on all ranks of the subscriber

    def _agree(self, version: int | None, newer: bool, changed: bool, seconds: float,
               error: Exception | None) -> Request:
        """Agrees on the same request on all ranks, before the request goes to the publisher. error: of this rank's
        other arguments."""
        request = Request(FETCH, milliseconds=int(seconds * 1000))
        try:
            version = None if version is None else as_version(version, "give an int, or None for the newest")
            request.newer, request.changed = int(bool(newer)), int(bool(changed))
        except Exception as failure:  # of a tensor's bool(), too: the other ranks wait and must be notified
            version, error = None, failure
        if version is not None and not 0 <= version < 1 << 62:
            error = ValueError(f"version is {version}; versions count from 0")
        else:
            request.wanted = -1 if version is None else version
        mine = json.dumps([request.wanted, request.newer, request.changed]).encode()
        everyone = self._alone(lambda: self._control.exchange([mine, b"", b""], error), seconds)
        for rank, given in enumerate(everyone):
            if given[0] != everyone[0][0]:
                raise MismatchError(f"ranks 0 and {rank} fetch differently: version (-1: the newest), newer, changed "
                                    f"are {everyone[0][0].decode()} and {given[0].decode()}")
        here = self._staged if self._wanted.is_staged else self._version
        # An incomplete second copy needs the whole state; newer= then counts from the target's version
        if here is None:
            request.changed, here = 0, self._version
        request.since = -1 if here is None else here
        return request

    def _alone(self, call: Any, seconds: float) -> Any:
        """A step among the subscriber's own ranks. A failure ends the group of these ranks, and so the subscription."""
        self._control.seconds = seconds + 4 * SLACK_S
        try:
            return call()
        except (PeerFailedError, AbortedError, GroupTimeoutError):
            if not self._is_well():
                self._leave()
            raise

    def _is_well(self) -> bool:
        """Whether the group of the subscriber's ranks still works: an error that all ranks agreed on does not harm the
        group. The other ranks come at once or not at all."""
        self._control.seconds = 2 * SLACK_S
        try:
            self._control.settle(None)
            return True
        except ShardwireError:
            return False

    def _settle(self, error: Exception | None, deadline: float) -> None:
        self._alone(lambda: self._control.settle(error), max(0.0, deadline - time.monotonic()))

    def _drop(self) -> None:
        joint, self._joint = self._joint, None
        if joint is not None:
            joint.leave()

    def _connect(self, deadline: float) -> None:
        """Joins the current publisher of the name: rank 0 finds the publisher, all ranks make a group with the
        publisher and compile."""
        found: dict[str, Any] = {}
        with Attempt() as search:
            if self._control.rank == 0:
                with Progress(f"subscribe to {self._address.name!r}", self._progress, 0) as shown:
                    shown.begin("looking for the publisher")
                    found = find(self._address, len(self._control.ranks), deadline, shown)
        left = max(0.0, deadline - time.monotonic())
        note = json.loads(self._alone(
            lambda: self._control.exchange([json.dumps(found).encode(), b"", b""], search.error), left)[0][0])
        place: Any = None
        # On its own: a rank that cannot open the place would let the others wait in the group
        with Attempt() as opening:
            place = self._address.open(max(1.0, deadline - time.monotonic()))
        self._settle(opening.error, deadline)
        with Attempt() as join:
            self._join(place, note, max(1.0, deadline - time.monotonic()))
        self._settle_or_drop(join.error, deadline)
        self._publisher = note["id"]

    def _join(self, place: Place, note: dict[str, Any], seconds: float) -> None:
        own = self._control
        name = f"{self._address.name}, subscriber {note['note']}"
        joint = Joint(place.group_store(f"{note['id']}/{note['note']}.group"), name, note["size"] + own.rank,
                      note["size"], len(own.ranks), own.global_rank, seconds)
        self._joint = joint
        with joint.errors_by_side():
            joint.compile(b"", None, self._wanted.read)

    def _settle_or_drop(self, error: Exception | None, deadline: float) -> None:
        """No rank of the subscriber has an error, or all ranks raise the same error and leave the subscription's
        group. Of several errors the cause is raised: a rank that fails leaves the group at once, and so the others fail
        too."""
        if error is not None:
            self._drop()
        try:
            kind = b"" if error is None else b"follows" if isinstance(error, _CONSEQUENCES) else b"cause"
            left = max(0.0, deadline - time.monotonic())
            kinds = [given[0] for given in self._alone(lambda: self._control.exchange([kind, b"", b""]), left)]
            if any(kinds):
                self._settle(error if b"cause" not in kinds or kind == b"cause" else None, deadline)
        except BaseException:
            self._drop()
            raise

    def _fetch(self, request: Request, deadline: float) -> int:
        if self._publisher != self._fetched_from:
            request.since = -1
        # On all ranks: before a failure, bytes may have moved on any rank
        before = self._holds(None)
        choice = Choice("wait")
        with Attempt() as attempt:
            joint = self._joint
            assert joint is not None
            with joint.errors_by_side():
                request, choice = self._ask(joint, request, deadline)
                if choice.verdict == "take":
                    self._move(joint, choice, deadline)
        try:
            self._settle_or_drop(attempt.error, deadline)
        except Exception as failure:
            raise type(failure)(f"{failure}; {self._what_target_holds()}") from failure
        # On all ranks, since all had the same answers; nothing moved
        if choice.verdict != "take":
            self._holds(before)
            raise self._without(request, choice)
        self._holds(choice.version)
        self._fetched_from = self._publisher
        return choice.version

    def _holds(self, version: int | None) -> int | None:
        """Notes the version of the second copy, or without a second copy of the target; returns the previous
        version."""
        if self._wanted.is_staged:
            before, self._staged = self._staged, version
        else:
            before, self._version = self._version, version
        return before

    def _what_target_holds(self) -> str:
        """A text about the target for the error of a failed fetch."""
        if not self._wanted.is_staged:
            return ("the target may hold parts of two versions now (its version is None): do not read the target "
                    "before a fetch succeeds. With subscribe(staged=True) the target would be unchanged")
        return "the target was not touched: " + ("it holds no version yet" if self._version is None
                                                 else f"it is version {self._version}, whole")

    def _ask(self, joint: Joint, request: Request, deadline: float) -> tuple[Request, Choice]:
        def left() -> float:
            return max(0.0, deadline - time.monotonic()) + SLACK_S

        request.milliseconds = max(0, int((deadline - time.monotonic()) * 1000))
        request = joint.request(request if self._control.rank == 0 else None, left())
        while True:
            choice = choose(joint.answer(None, left()), request)
            if choice.verdict != "wait":
                return request, choice

    def _move(self, joint: Joint, choice: Choice, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic()) + SLACK_S
        if self._wanted.stage is not None:
            self._wanted.stage.check()  # now, while all ranks can still be notified
        with Progress(f"fetch version {choice.version} of {self._address.name!r}", self._progress,
                      self._control.rank) as shown:
            movement = (joint.full if choice.whole else joint.compile_changed(lambda name: (), left) if choice.moves
                        else None)
            if movement is not None:
                shown.begin("moving", num_bytes := movement.num_bytes() if choice.whole else 0)
                shown.wait(movement.run(left), num_bytes)
        served = joint.done(None, left)
        wrong = [(rank, version) for rank, version in enumerate(served) if version != choice.version]
        if wrong:
            raise ShardwireError(f"version {choice.version} was asked for, and rank {wrong[0][0]} gave {wrong[0][1]}")

    def _without(self, request: Request, choice: Choice) -> Exception:
        there = f"it has {', '.join(map(str, choice.held))}" if choice.held else "no version is held by all ranks"
        if choice.verdict == "gone":
            return ValueError(f"version {request.wanted} of {self._address.name!r} is gone: {there}; "
                              "publish(buffers=...) keeps more")
        what = (f"version {request.wanted}" if request.wanted >= 0 else f"a version after {request.since}"
                if request.newer else "a version")
        return GroupTimeoutError(f"the publisher of {self._address.name!r} did not commit {what} in time: {there}")
