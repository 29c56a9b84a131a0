"""Groups that go on: reconfigure by handles, agree and shrink after deaths, also of rank 0 and of several ranks."""

from __future__ import annotations

import gc
import io
import os
import random
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import shardwire
import shardwire.survive.reconfigure as survive
from conftest import raises
from fork_ranks import meet
from shardwire.records import client
from shardwire.records.client import RecordClient
from shardwire.records.server import RecordServer
from shardwire.survive import agreement, process_handles
from shardwire.survive.process_handles import OtherProcess, ProcessHandle, parse_handle


def _exchange_handles(group=None):
    handles = shardwire.reconfigure_handles(group)
    meet("handles")
    return handles


def _sum(group=None):
    """An all_reduce of ones: the number of ranks."""
    ones = torch.ones(3)
    dist.all_reduce(ones, group=group)
    return ones[0].item()


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _until_it_fails(group=None):
    try:
        for _ in range(100_000):
            _sum(group)
    except shardwire.PeerFailedError as error:
        return error
    raise AssertionError("the group did not fail")


def _survive(rank, size, dying):
    _exchange_handles()
    if rank in dying:
        _kill()
    _until_it_fails()
    begin = time.monotonic()
    shardwire.shrink()
    took = time.monotonic() - begin
    living = [each for each in range(size) if each not in dying]
    assert (dist.get_rank(), dist.get_world_size(), _sum()) == (living.index(rank), len(living), len(living))
    assert len(shardwire.reconfigure_handles()) == len(living)
    return took


@pytest.mark.parametrize("dying", [{2}, {0}, {1, 3}, {0, 1, 2}])
def test_survivors_go_on(run_ranks, dying):
    run_ranks(4, _survive, dying, may_die=dying)


def _wait_elsewhere(rank, size, waiting):
    """The waiting rank waits for another living rank, which shrinks because of an error in another group."""
    _exchange_handles()
    if rank == size - 1:
        _kill()
    begin = time.monotonic()
    if rank == waiting:
        error = raises(shardwire.AbortedError, dist.recv, torch.zeros(1), (waiting + 1) % (size - 1),
                       contains="has ended")
        assert f"rank {size - 1} (pid" in str(error), error
    shardwire.shrink()
    assert time.monotonic() - begin < 10
    assert (dist.get_rank(), _sum()) == (rank, size - 1)


# Rank 0 answers the others.
@pytest.mark.parametrize("waiting", [0, 1])
def test_shrink_ends_the_waits_of_ranks_that_did_not_notice_the_death(run_ranks, waiting):
    run_ranks(4, _wait_elsewhere, waiting, may_die={3})


def _hold_the_old_groups(rank, size):
    """Something still holds the failed groups, as the frames of an exception in a cycle do."""
    held = [dist.group.WORLD, dist.new_group([0, 1])]
    _exchange_handles()
    if rank == 1:
        _kill()
    for group in held[::-1] if rank == 0 else held[:1]:
        _until_it_fails(group)
    shardwire.shrink()
    for _ in range(2):
        if rank == 0:
            time.sleep(0.6)  # longer than SHARDWIRE_GRACE_S
        assert _sum() == size - 1


def test_failed_groups_of_the_past_harm_no_new_group(run_ranks):
    run_ranks(3, _hold_the_old_groups, may_die={1})


def _die_one_after_another(rank, size):
    _exchange_handles()
    for dead in range(size - 1):
        meet(f"summed {dead}", size - dead)
        if rank == dead:  # always the present rank 0
            _kill()
        _until_it_fails()
        shardwire.shrink()
        assert (dist.get_rank(), _sum()) == (rank - dead - 1, size - dead - 1)


def test_rank_0_dies_again_and_again(run_ranks):
    run_ranks(4, _die_one_after_another, may_die={0, 1, 2})


def _die_within_shrink(rank, size, dying, seconds):
    _exchange_handles()
    if rank == 0:
        _kill()
    _until_it_fails()
    if rank == dying:
        threading.Timer(seconds, _kill).start()
    shardwire.shrink()
    if rank == dying:
        time.sleep(20)
    # The rank died before or after the making of the group.
    if dist.get_world_size() == size - 1:
        _until_it_fails()
        shardwire.shrink()
    assert _sum() == dist.get_world_size() == size - 2


def test_a_rank_dies_while_the_others_shrink(run_ranks):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for dying in (1, 2, 3):
        run_ranks(4, _die_within_shrink, dying, draw.uniform(0, 0.03), may_die={0, dying})


def _die_behind_the_meeting(rank, size, dying):
    """The rank has met the others, and has not published an address."""
    _exchange_handles()
    if rank == 1:
        _kill()
    _until_it_fails()
    if rank == dying:
        survive.begin_names_anew = lambda digest: _kill()
    begin = time.monotonic()
    shardwire.shrink()
    assert time.monotonic() - begin < 10  # half of the group's timeout
    assert _sum() == size - 2


@pytest.mark.parametrize("dying", [0, 2])
def test_a_rank_that_dies_while_the_group_is_made_is_left_out(run_ranks, dying):
    run_ranks(5, _die_behind_the_meeting, dying, may_die={1, dying})


def _die_behind_the_answer(rank, size):
    """Rank 2 has made the new group and said so; for the others the making fails by the death of rank 2."""
    handles = _exchange_handles()
    if rank == 1:
        _kill()
    _until_it_fails()
    ask, remake, answers = OtherProcess.ask, survive._remake, []

    def ask_and_die(self, *request):
        done = ask(self, *request)
        answers.extend([request[1]] if request[0] == "put" and request[1].startswith("agree/") else [])
        if len(set(answers)) == 2:
            _kill()
        return done

    def fail_by_the_death(*arguments):
        survive._remake = remake  # once, also where the death fails this call
        remake(*arguments)
        other = OtherProcess(parse_handle(handles[2]))
        while not other.is_gone:
            other.ask("peek", "")
        survive._end(None)
        raise shardwire.PeerFailedError("rank 2 has ended")

    if rank == 2:
        OtherProcess.ask = ask_and_die
    else:
        survive._remake = fail_by_the_death
    shardwire.shrink()
    assert _sum() == size - 2


def test_a_rank_that_dies_behind_its_answer_is_left_out(run_ranks):
    run_ranks(4, _die_behind_the_answer, may_die={1, 2})


def _dies_in_reconfigure(rank, size):
    handles = _exchange_handles()
    if rank == 1:
        survive.begin_names_anew = lambda digest: _kill()
    raises(shardwire.PeerFailedError, shardwire.reconfigure, None, "dies", handles, contains="rank 1 (pid")
    meet("raised", size - 1)


def test_reconfigure_names_a_rank_that_dies_while_the_group_is_made(run_ranks):
    run_ranks(3, _dies_in_reconfigure, may_die={1})


def _recompile(rank, size):
    """Each rank holds two rows, and the next rank holds a copy of them."""
    _exchange_handles()
    x = torch.arange(2. * size * 3).view(2 * size, 3)
    mine, copied, whole = [2 * rank, 0], [2 * ((rank - 1) % size), 0], {"offset": [0, 0], "shape": [2 * size, 3]}
    held = [{"offset": each, "shape": [2, 3]} for each in (mine, copied)]
    op = shardwire.compile_op(None, (2 * size, 3), torch.float32, held, [whole], overlap="any", name="rows")
    alone = shardwire.compile_op(None, (2 * size, 3), torch.float32, held[:1], [whole])
    gaps = shardwire.compile_op(None, (2 * size, 3), torch.float32, held[:1], [whole], allow_gaps=True)
    total = shardwire.compile_op(None, (3,), torch.float32, *2 * [[{"offset": [0], "shape": [3]}]], reduction="sum")
    planned = shardwire.compile_op(None, (2,), torch.float32, *2 * [[{"offset": [0], "shape": [2]}]], cc_enabled=False,
                                   rank_id=rank, world_size=size)
    parts = [x[first:first + 2] for first, _ in (mine, copied)]
    out = torch.zeros_like(x)
    op(parts, out).wait()
    assert torch.equal(out, x)
    meet("compiled")
    if rank == 1:
        _kill()
    _until_it_fails()
    shardwire.shrink()
    raises(shardwire.ShardwireError, lambda: op(parts, out).wait())
    again, out = op.for_group(), torch.zeros_like(x)
    again(parts, out).wait()
    assert torch.equal(out, x) and again.traffic()["name"] == "rows" and again.traffic()["world_size"] == size - 1
    raises(shardwire.GapError, alone.for_group, contains="[2:4, 0:3]")
    out = torch.full_like(x, -1)
    gaps.for_group()(parts[:1], out).wait()
    assert torch.equal(out, torch.cat([x[:2], torch.full((2, 3), -1.), x[4:]]))
    out = torch.zeros(3)
    total.for_group(timeout=20)([torch.ones(3)], [out]).wait()
    assert out.tolist() == [size - 1.] * 3
    raises(TypeError, planned.for_group, contains="planned without a group")
    # One rank's mistake is raised on all ranks.
    raises(ValueError, lambda: op.for_group(timeout=-1 if dist.get_rank() == 0 else None))
    assert _sum() == size - 1


def test_a_compiled_op_goes_on_with_the_survivors(run_ranks):
    run_ranks(3, _recompile, may_die={1})


def _leave(rank, size):
    _exchange_handles()
    name = dist.group.WORLD.name()
    made = shardwire.shrink(ranks=[1])
    assert (made is None) == (rank == 1) == (not dist.is_initialized())
    if rank != 1:
        assert _sum() == size - 1
        assert dist.group.WORLD.name() == name  # of torch's default backend


def test_living_ranks_leave(run_ranks):
    run_ranks(3, _leave)


def _agree(rank, size):
    _exchange_handles()
    handle = shardwire.reconfigure_handle()
    raises(ValueError, shardwire.shrink, None, [7], contains="ranks [7]")
    raises(TypeError, shardwire.shrink, None, [1.5], contains="ranks is [1.5]; give ranks of the group, as ints")
    assert shardwire.agree() == (True, (), shardwire.reconfigure_handles())
    assert not shardwire.agree(rank != 1, timeout=float("inf")).flag
    bits = (1 << 20000) - 1  # more than 4300 decimal digits
    assert shardwire.agree(bits - (1 << rank)).flag == bits - 15 and shardwire.agree(-1).flag == -1
    meet("agreed")
    if rank == 2:
        _kill()
    verdict = shardwire.agree(flag=True)
    assert (verdict.flag, verdict.dead, verdict.handles.index(handle)) == (True, (2,), [0, 1, None, 2][rank])
    shardwire.shrink()
    assert _sum() == size - 1


def _shrink_again_and_again(rank, size):
    """Without a death. Objects of Python and descriptors after the first rounds and at the end, and an error's text."""
    _exchange_handles()
    counts = []
    for rounds in (10, 30):
        for _ in range(rounds):
            shardwire.shrink()
            assert _sum() == size
        gc.collect()
        counts.append((len(gc.get_objects()), len(os.listdir("/proc/self/fd"))))
    sys.stderr = io.StringIO()
    sys.excepthook(ValueError, ValueError("of the program"), None)
    return counts, sys.stderr.getvalue()


def test_many_groups_leave_nothing_behind(run_ranks):
    for counts, text in run_ranks(2, _shrink_again_and_again):
        (objects, files), (objects_later, files_later) = counts
        assert objects_later - objects < 30 and files_later - files < 10
        assert text.count("[rank") <= 1, text  # torch's init_process_group wraps the hook each time


def test_agreement(run_ranks):
    run_ranks(4, _agree, may_die={2})


def _stopped(rank, size):
    pid = parse_handle(_exchange_handles()[1]).pid
    if rank == 1:
        os.kill(pid, signal.SIGSTOP)
        raises(shardwire.PeerFailedError, shardwire.agree, contains="go on without this one")
        return
    meet("here", size - 1)
    verdict = shardwire.agree(timeout=2)
    assert verdict.dead == (1,)
    assert shardwire.agree(timeout=2).dead == (1,)  # without a second timeout
    os.kill(pid, signal.SIGCONT)


def test_a_stopped_rank_counts_as_dead_after_the_timeout(run_ranks):
    run_ranks(3, _stopped, init=True)


def _in_wrong_places():
    """A silent address and a right one; and a port that another job's process has got."""
    server = RecordServer("127.0.0.1", 0)
    port = int(server.address.rpartition(":")[2])
    RecordClient("127.0.0.1", port, 5).ask("put", process_handles._PROCESS_KEY, "me")
    process_handles._CONNECT_S = 0.3
    with socket.socket() as silent:
        silent.bind(("127.0.0.2", port))
        silent.listen(8)  # and says nothing
        other = OtherProcess(ProcessHandle("me", "another host", "x", 1, ("127.0.0.2", "127.0.0.1"), port))
        assert other.ask("peek", process_handles._PROCESS_KEY) == "me" and not other.is_gone
        other = OtherProcess(ProcessHandle("you", "another host", "x", 1, ("127.0.0.2", "127.0.0.1"), port))
        assert other.ask("peek", process_handles._PROCESS_KEY) is None and not other.is_gone, "it may be the silent one"
    client.proof = lambda role, body: "of another job"
    other = OtherProcess(ProcessHandle("me", "another host", "x", 1, ("127.0.0.1",), port))
    assert other.ask("peek", process_handles._PROCESS_KEY) is None and other.is_gone


def test_a_process_is_looked_for_at_all_its_addresses(run_ranks):
    run_ranks(1, lambda rank, size: _in_wrong_places(), init=False)


def _no_store(rank, size):
    if rank == 1:
        def fails():
            raise OSError(24, "Too many open files")
        survive.own_store = fails
    raises(shardwire.SystemFailure, shardwire.reconfigure_handles, contains="rank 1: [Errno 24] Too many open files")


def test_a_rank_that_can_have_no_handle_is_an_error_of_all_ranks_at_once(run_ranks):
    run_ranks(2, _no_store)


def _late(rank, size, is_deciding):
    """Rank 0 is only late: before agree, or (with all answers) just before its verdict. Its store answers meanwhile."""
    _exchange_handles()
    if rank == 0:
        if is_deciding:
            verdict_of = agreement._verdict_of
            agreement._verdict_of = lambda *arguments: (meet("decided"), verdict_of(*arguments))[1]
        else:
            meet("decided")
        raises(shardwire.PeerFailedError, shardwire.agree, True, None, 1, contains="go on without this one")
        return
    try:
        assert shardwire.agree(timeout=1).dead == (0,)
    finally:
        meet("decided")


@pytest.mark.parametrize("is_deciding", [False, True])
def test_a_late_rank_0_gives_no_second_verdict(run_ranks, is_deciding):
    run_ranks(3, _late, is_deciding)


def _late_for_shrink(rank, size):
    _exchange_handles()
    if rank == 0:
        meet("shrunk")
        raises(shardwire.PeerFailedError, shardwire.shrink, None, (), 2, contains="go on without this one")
        dist.destroy_process_group()  # which the others have revoked
        return
    try:
        shardwire.shrink(timeout=2)
        assert (dist.get_world_size(), _sum()) == (2, 2)
    finally:
        meet("shrunk")


def test_a_late_rank_0_gets_an_error_of_shrink_and_no_object(run_ranks):
    run_ranks(3, _late_for_shrink)


def _handles_by_file(folder, rank, size):
    """Every process finds the others' handles, without a group."""
    (folder / f"{rank}.new").write_text(shardwire.reconfigure_handle())
    (folder / f"{rank}.new").rename(folder / str(rank))
    while len([each for each in folder.iterdir() if not each.suffix]) < size:
        time.sleep(0.002)
    return [(folder / str(each)).read_text() for each in range(size)]


def _move(rank, size, folder):
    handles = _handles_by_file(folder, rank, size)
    # Late join of processes without a group: 0 and 1, then all four, in another order.
    if rank < 2:
        shardwire.reconfigure(None, "two", handles[:2])
        assert (dist.get_rank(), _sum()) == (rank, 2)
    shardwire.reconfigure(None, "four", handles[::-1], timeout=20)
    assert (dist.get_rank(), _sum()) == (3 - rank, 4)
    # Split, and join the halves again.
    half = [0, 2] if rank % 2 == 0 else [1, 3]
    shardwire.reconfigure(None, f"half {rank % 2}", [handles[each] for each in half])
    assert (dist.get_rank(), _sum()) == (half.index(rank), 2)
    error = raises(ValueError, shardwire.reconfigure, None, f"half {rank % 2}", handles, contains="already used")
    assert _sum() == 2, error  # the group is untouched
    shardwire.reconfigure(None, "all", handles)
    assert (dist.get_rank(), _sum()) == (rank, 4)
    shardwire.reconfigure(None, "identity", handles)
    assert (dist.get_rank(), _sum()) == (rank, 4)
    shardwire.reconfigure(None, f"alone {rank}", [handles[rank]])
    assert (dist.get_rank(), _sum()) == (0, 1)


def test_processes_join_split_and_merge(run_ranks, tmp_path):
    run_ranks(4, _move, tmp_path, init=False)


def _join_with_other_pasts(rank, size, folder):
    handles = _handles_by_file(folder, rank, size)
    # Torch numbers the groups of a process, and counts a group that could not be made. Ranks meet under the numbers.
    for _ in range(rank):
        raises(RuntimeError, lambda: dist.init_process_group("shardwire", store=dist.HashStore(), rank=0, world_size=2,
                                                             timeout=timedelta(milliseconds=1)), contains="rank 1")
        shardwire.create_process_group(dist.HashStore(), 0, 1)
    for uuid in ("first", "second"):
        shardwire.reconfigure(None, uuid, handles, timeout=20)
        assert _sum() == size
        assert _sum(dist.new_group(timeout=timedelta(seconds=20))) == size
        assert _sum(shardwire.create_process_group(_get_default_store(), rank, size, timeout=20)) == size


def test_processes_that_made_other_numbers_of_groups_join(run_ranks, tmp_path):
    run_ranks(3, _join_with_other_pasts, tmp_path, init=False)


def _keep_the_timeout(rank, size):
    handles = _exchange_handles()
    shardwire.reconfigure(None, "again", handles, timeout=15)
    store = dist.PrefixStore("own", _get_default_store())
    group = shardwire.create_process_group(store, rank, size, timeout=7, standalone=True)
    group = shardwire.reconfigure(group, "own again", handles, timeout=15)
    assert [shardwire.resolve_backend(each).options._timeout.total_seconds() for each in (None, group)] == [20, 7]


def test_a_group_keeps_its_timeout(run_ranks):
    run_ranks(2, _keep_the_timeout)


def _standalone(rank, size):
    group = shardwire.create_process_group(dist.PrefixStore("own", _get_default_store()), rank, size, timeout=20,
                                           name="mine", standalone=True)
    handles = _exchange_handles(group)
    assert handles == shardwire.reconfigure_handles("mine")
    if rank == 1:
        _kill()
    with pytest.raises(shardwire.PeerFailedError):
        while True:
            shardwire.resolve_backend(group).barrier().wait()
    made = shardwire.shrink(group)
    ones = torch.ones(2)
    shardwire.resolve_backend(made).allreduce([ones]).wait()
    assert ones[0] == size - 1 and shardwire.find_process_group("mine") is made
    dist.destroy_process_group()


def test_a_standalone_group_keeps_its_name(run_ranks):
    run_ranks(3, _standalone, may_die={1})


def _wrong(rank, size, folder):
    handles = _handles_by_file(folder, rank, size)
    raises(ValueError, shardwire.reconfigure, None, "a", handles[:rank] + handles[rank + 1:], contains="a process that "
           "leaves the group does not call")
    raises(ValueError, shardwire.reconfigure, None, "a", handles + handles[:1], contains="twice")
    raises(ValueError, shardwire.reconfigure, None, "a", ["shardwire-process:e30="], contains="is no handle")
    raises(TypeError, shardwire.reconfigure, None, "a", [7], contains="no int")
    raises(TypeError, shardwire.reconfigure, None, "", handles, contains="uuid")
    raises(ValueError, shardwire.shrink, contains="no default process group")
    # The lists differ
    mine = handles if rank < 2 else [handles[0], handles[2], handles[1]]
    raises(shardwire.MismatchError, shardwire.reconfigure, None, "b", mine, contains="different handles")
    # A process is missing
    if rank < 2:
        error = raises(shardwire.TimeoutError, shardwire.reconfigure, None, "c", handles, 0.3)
        assert f"rank 2 (pid {_pid_of(handles[2])} on host" in str(error) or "rank 0" in str(error)
    raises(ValueError, shardwire.reconfigure, None, "c" if rank < 2 else "b", handles, contains="already used")
    shardwire.reconfigure(None, "d", handles)
    assert _sum() == size


def _pid_of(handle):
    return parse_handle(handle).pid


def test_wrong_calls_are_refused_by_name(run_ranks, tmp_path):
    run_ranks(3, _wrong, tmp_path, init=False)


def _ended(rank, size, folder):
    handles = _handles_by_file(folder, rank, size)
    if rank == 1:
        _kill()
    while True:  # until the process has ended
        error = raises(shardwire.PeerFailedError, shardwire.reconfigure, None, f"a {time.monotonic()}",
                       handles[rank:] + handles[:rank], 10)
        if f"pid {_pid_of(handles[1])}" in str(error):
            return


def test_an_ended_process_is_named(run_ranks, tmp_path):
    run_ranks(2, _ended, tmp_path, init=False, may_die={1})


def _without_handles(rank, size):
    raises(ValueError, shardwire.shrink, contains="shardwire.reconfigure_handles(group)")
    raises(ValueError, shardwire.agree, contains="shardwire.reconfigure_handles(group)")


def test_shrink_without_handles_says_what_is_missing(run_ranks):
    run_ranks(2, _without_handles)


def _interrupted_in(call, *args):
    def interrupt(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        call(*args)


def _interrupted(rank, size):
    handles = _exchange_handles()
    if rank == 0:
        _interrupted_in(shardwire.reconfigure, None, "alone", handles)  # rank 1 does not come
    meet("interrupted")
    shardwire.reconfigure(None, "together", handles)
    assert (_sum(), shardwire.agree().dead) == (size, ())


def test_ctrl_c_ends_one_call_and_the_next_one_works(run_ranks):
    run_ranks(2, _interrupted)


def _silent_for_a_while(rank, size):
    RecordClient.__init__.__defaults__ = (0.2,)  # an answer's time limit where the caller gives none
    handles = _exchange_handles()
    shardwire.reconfigure(None, "one", handles)
    if rank == 1:
        store = survive.members_by_group[dist.group.WORLD].store
        _interrupted_in(store.get, "a key that nobody writes")
        store.set("key", "value")
        assert store.get("key") == b"value"
    meet("interrupted")
    if rank == 1:
        pid = parse_handle(handles[0]).pid
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1, os.kill, (pid, signal.SIGCONT)).start()
    assert _sum(dist.new_group([0, 1])) == size


def test_a_group_is_made_though_rank_0_is_silent_for_a_while_or_ctrl_c_came_before(run_ranks):
    run_ranks(2, _silent_for_a_while)
