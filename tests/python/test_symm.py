"""shardwire.symm: symmetric tensors and their views, access, signals, atomics, teams, and the refusals of each call."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from fork_ranks import meet
from ranks import group, outcome, raised, run_ranks

import shardwire
from shardwire import _C, symm

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", random.SystemRandom().randrange(1 << 30)))
DTYPES = [dtype for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                              torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
                              getattr(torch, "float8_e4m3fn", None), getattr(torch, "uint16", None))
          if dtype is not None]


def pattern(rank, dtype, count, salt=0):
    """Bytes of every value, as elements."""
    size = torch.empty(0, dtype=dtype).element_size()
    raw = ((torch.arange(count * size) * 7 + rank * 31 + salt) % (2 if dtype == torch.bool else 251)).to(torch.uint8)
    return raw.view(dtype)


def bytes_of(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(-1).view(torch.uint8)


def same_bytes(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bytes_of(one), bytes_of(other))


# ---- tensors

def peers_body(rank):
    world = group()
    for dtype in DTYPES:
        t = symm.empty(6, 8, dtype=dtype, group=world)
        assert (t.shape == (6, 8) and t.dtype == dtype and t.is_contiguous() and shardwire.in_shared_heap(t)
                and symm.is_symmetric(t))
        t.view(torch.uint8).copy_(pattern(rank, dtype, 48).view(torch.uint8).view_as(t.view(torch.uint8)))
        symm.barrier(world)
        for peer in range(3):
            wanted = pattern(peer, dtype, 48).view(6, 8)
            for view in (lambda x: x, lambda x: x[2], lambda x: x[1:5:2, 3:], lambda x: x.t(), lambda x: x[3, 5],
                         lambda x: x[2:].view(-1)):
                theirs = symm.get_peer_tensor(view(t), peer)
                assert (type(theirs) is torch.Tensor and theirs.stride() == view(t).stride()
                        and same_bytes(theirs, view(wanted))), (dtype, peer)
                # A peer tensor is symmetric too: any rank's elements lead to the elements of every other rank.
                again = symm.get_peer_tensor(theirs, (peer + 1) % 3)
                assert same_bytes(again, view(pattern((peer + 1) % 3, dtype, 48).view(6, 8)))
        symm.barrier(world)
        # Written by the tensor code of a peer, seen by the owner.
        symm.get_peer_tensor(t, (rank + 1) % 3)[rank].copy_(pattern(rank, dtype, 8, salt=3))
        symm.barrier(world)
        assert same_bytes(t[(rank - 1) % 3], pattern((rank - 1) % 3, dtype, 8, salt=3))
        symm.barrier(world)
    return True


def test_peer_tensors_of_every_dtype_and_view():
    run_ranks(3, peers_body)


def heap_tensor_body(rank):
    world = group()
    t = symm.zeros(1 << 18, group=world)
    assert torch.equal(t, torch.zeros(1 << 18))
    t.fill_(rank + 1)
    team = symm.team(world)
    team.all_reduce(t)
    assert torch.equal(t, torch.full((1 << 18,), 6.0))
    op = shardwire.compile_op(world, shape=(3, 4), dtype=torch.float32, inputs=[{"offset": (rank, 0), "shape": (1, 4)}],
                              outputs=[{"offset": (0, 0), "shape": (3, 4)}])
    rows, out = symm.empty((1, 4), group=world), symm.empty(3, 4, group=world)
    rows.fill_(rank)
    op([rows], [out]).wait()
    assert torch.equal(out, torch.arange(3.0)[:, None].expand(3, 4))
    empty = symm.empty(0, 5, dtype=torch.int16, group=world)
    assert empty.shape == (0, 5) and symm.get_peer_tensor(empty, 1).shape == (0, 5)
    scalar = symm.zeros((), dtype=torch.int64, group=world)
    assert scalar.shape == () and scalar.item() == 0
    symm.put(empty, torch.empty(0, 5, dtype=torch.int16), 0)
    symm.barrier(world)
    return True


def test_they_are_ordinary_heap_tensors_to_collectives_and_compile_op():
    run_ranks(3, heap_tensor_body)


def unequal_body(rank):
    world = group()
    texts = [raised(symm.empty, 4, 5 + (rank == 1), group=world),
             raised(symm.empty, 4, dtype=torch.int32 if rank else torch.int16, group=world),
             raised(symm.empty, *((4, -1) if rank == 2 else (4, 1)), group=world),
             raised(symm.empty, 3, dtype="float" if rank == 1 else torch.int8, group=world),
             raised(symm.empty, (2, 1.5) if rank == 0 else (2, 1), group=world),
             raised(symm.zeros if rank else symm.empty, 3, group=world),
             raised(symm.empty, 1 << 62 if rank == 1 else 1, group=world),
             raised(symm.empty, 0, 1 << 70 if rank == 1 else 1, group=world),
             raised(symm.team(world).split_strided, 0, 1, 9 if rank else 2), raised(symm.split_2d, world, 0),
             raised(symm.team(world).split_strided, rank, 1, 1),
             raised(symm.empty, 3, timeout=-1 if rank == 2 else None, group=world),
             raised(symm.zeros, 3, timeout="soon" if rank == 1 else 20, group=world)]
    assert symm.zeros(1, group=world).item() == 0  # the group is usable
    symm.barrier(world)
    return texts


def test_what_differs_or_is_wrong_on_one_rank_is_the_same_error_on_all(links):
    results = run_ranks(3, unequal_body)
    assert results[0] == results[1] == results[2]
    mismatch, value = shardwire.errors.MismatchError, ValueError
    assert [kind for kind, _ in results[0]] == [mismatch, mismatch, value, value, value, mismatch, value, value, value,
                                                value, mismatch, value, value]
    assert "ranks 0, 2 gave Float[4, 5], rank 1 gave Float[4, 6]" in results[0][0][1]
    assert "rank 2: shape (4, -1) has a negative extent" in results[0][2][1]
    assert "rank 1: dtype is a str; give a torch.dtype" in results[0][3][1]
    assert "rank 0: shape has a float in it" in results[0][4][1]
    assert "rank 1: shape (0, 1180591620717411303424) is larger than any memory" in results[0][7][1]
    assert "rank 2: timeout is -1" in results[0][11][1] and "rank 1: timeout is a str" in results[0][12][1]


def full_heap_body(rank):
    world = group()
    kind, text = raised(symm.empty, 1 << 40, dtype=torch.uint8, group=world)
    symm.barrier(world)
    return kind is ValueError and "rank 0: the shared heap of" in text and "SHARDWIRE_HEAP_BYTES" in text


def foreign_body(rank):
    ours = symm.empty(3, group=group())
    for wrong in (torch.zeros(3), 3):
        kind, text = raised(lambda: symm.free(wrong if rank else ours, group=group()))
        assert kind is ValueError and "does not lie in symmetric memory" in text, text
    for wrong in (-1, "soon"):
        kind, text = raised(lambda: symm.free(ours, timeout=wrong if rank else 20))
        assert kind is ValueError and "rank 1: timeout is" in text, text
    symm.free(ours, group=group())


def test_a_wrong_argument_of_one_rank_is_an_error_of_free_on_all():
    run_ranks(2, foreign_body, timeout=20)


def test_a_full_heap_is_an_error_on_all_ranks():
    assert all(run_ranks(2, full_heap_body))


# ---- giving back

def free_body(rank):
    world = group()
    symm.barrier(world)
    before = _C.heap_used_bytes()
    t = symm.empty(1000, group=world)
    view, theirs = t[5:], symm.get_peer_tensor(t, 1 - rank)
    symm.free(t)
    for call in (lambda: symm.get_peer_tensor(view, 0), lambda: symm.put(t, t, 0), lambda: symm.atomic_add(t[0], 1, 0),
                 lambda: symm.signal_wait(t[0], "eq", 0), lambda: symm.get_multicast_tensor(t).store(0.0)):
        kind, text = raised(call)
        assert kind in (ValueError, TypeError), text
    assert not symm.is_symmetric(t)
    assert raised(symm.free, t)[0] is ValueError
    theirs.fill_(1)  # the memory of a live tensor stays
    symm.barrier(world)
    view.add_(1)
    del t, view, theirs
    symm.barrier(world)
    # Dropped without a call of free(), on one rank first.
    t = symm.empty(1000, group=world)
    if rank == 0:
        del t
    symm.barrier(world)
    if rank == 1:
        symm.get_peer_tensor(t, 0).fill_(3)
        del t
    symm.barrier(world)
    symm.empty(1, group=world)
    symm.barrier(world)
    symm.free(symm.empty(1, group=world))
    symm.barrier(world)
    symm.free(symm.empty(1, group=world))
    return _C.heap_used_bytes() - before, _C.symm_num_deferred()


def test_memory_comes_back_when_all_have_dropped_it():
    for used, deferred in run_ranks(2, free_body):
        assert deferred <= 1 and used <= 4096  # the release of the last tensor may still be under way


def rounds_body(rank, rounds):
    world = group()
    symm.barrier(world)
    before = _C.heap_used_bytes()
    for i in range(rounds):
        t = symm.empty(100 if i % 10 else 100000, group=world)
        theirs = symm.get_peer_tensor(t, 1 - rank)
        if i % 3 == 0:
            symm.free(t)
        theirs[0] = i
        del theirs
        del t
    symm.barrier(world)
    symm.free(symm.empty(1, group=world))
    return (_C.heap_used_bytes() - before) <= 2 * 4096 and _C.symm_num_deferred() <= 2


def test_many_rounds_leave_nothing():
    assert all(run_ranks(2, rounds_body, int(os.environ.get("SHARDWIRE_SYMM_ROUNDS", "2000")), timeout=600))


# ---- access

def access_body(rank, seed):
    """Random puts and gets of views against a model that each rank keeps of all parts."""
    world = group()
    rng = random.Random(seed)  # the same on all ranks
    for case in range(60):
        dtype = rng.choice(DTYPES)
        shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))
        count = torch.Size(shape).numel()
        t = symm.empty(shape, dtype=dtype, group=world)
        t.view(-1).view(torch.uint8).copy_(pattern(rank, dtype, count, salt=case).view(torch.uint8))
        model = [pattern(r, dtype, count, salt=case).clone().view(shape) for r in range(3)]
        symm.barrier(world)
        index = tuple(slice(rng.randint(0, extent - 1), None, rng.randint(1, 2)) for extent in shape)
        order = rng.sample(range(len(shape)), len(shape))
        view = (lambda x: x[index].permute(order))  # noqa: B023: used in this round
        actor, target = rng.randrange(3), rng.randrange(3)
        source = pattern(7, dtype, view(t).numel(), salt=case).view(view(t).shape)
        if rng.random() < 0.5:
            source = torch.empty(*source.shape, 2, dtype=dtype)[..., 1].copy_(source)  # every second element
        if rank == actor:
            (symm.put if case % 2 else symm.put_nbi)(view(t), source, target)
            symm.quiet()
        view(model[target]).copy_(source)
        symm.barrier(world)
        for peer in range(3):
            got = torch.empty_like(view(t)) if case % 3 else torch.empty(view(t).shape, dtype=dtype)
            (symm.get if case % 2 else symm.get_nbi)(got, view(t), peer)
            symm.quiet()
            assert same_bytes(got, view(model[peer])), (seed, case, dtype, shape)
        assert same_bytes(t, model[rank]), (seed, case, dtype, shape)
        symm.barrier(world)
    return True


def test_puts_and_gets_of_random_views_against_a_model(links):
    run_ranks(3, access_body, SEED)


def refused_body(rank):
    world = group()
    t = symm.zeros(4, group=world)
    plain, ones = torch.zeros(4), torch.ones(4)
    value = [lambda: symm.put(plain, t, 0), lambda: symm.get(plain, plain, 0), lambda: symm.get_peer_tensor(plain, 0),
             lambda: symm.put(t, torch.zeros(5), 0), lambda: symm.put(t, plain, 2), lambda: symm.get_peer_tensor(t, -1),
             lambda: symm.put(t[:1].expand(4), plain, 0), lambda: symm.atomic_add(t, 1, 0),
             lambda: symm.atomic_add(symm_int[0], 1 << 40, 0), lambda: symm.signal_op(symm_int[0], 1, 0, op="sub"),
             lambda: symm.free(plain), lambda: symm.signal_wait(symm_int[0], "about", 1),
             lambda: symm.signal_wait(symm_int[0], "ge", 1, timeout=-1),
             lambda: symm.signal_wait(symm.get_peer_tensor(symm_int, 1 - rank)[0], "ge", 1),
             lambda: symm.signal_wait(symm_int[0], "ge", 1, source=5),
             lambda: symm.team(world).translate(3, symm.team(world)),
             lambda: symm.team(world).all_reduce(t, op="median"), lambda: symm.get_multicast_tensor(plain),
             lambda: symm.get_peer_tensor(wide.conj(), 0), lambda: symm.get_multicast_tensor(wide.conj()),
             lambda: symm.put_signal(t, ones, plain[0], 1, 1 - rank),
             lambda: symm.put_signal(t, ones, symm_int, 1, 1 - rank),
             lambda: symm.put_signal(t, ones, symm_int[0], 1 << 40, 1 - rank)]
    kind = [lambda: symm.put(t, torch.zeros(4, dtype=torch.int32), 0), lambda: symm.atomic_and(t[0], 1, 0),
            lambda: symm.signal_wait(t[0], "ge", 1), lambda: symm.signal_wait(symm_int[0], "ge", 1, timeout="1"),
            lambda: symm.signal_wait(symm_int[0], "ge", 1, source="x"),
            lambda: symm.get_multicast_tensor(3), lambda: symm.empty(3, group=17),
            lambda: symm.atomic_set(symm_int[0], None, 0), lambda: symm.atomic_set(t[0], None, 0),
            lambda: symm.signal_op(symm_int[0], None, 0), lambda: symm.atomic_compare_swap(symm_int[0], None, 1, 0),
            lambda: symm.atomic_compare_swap(symm_int[0], 0, None, 0),
            lambda: symm.put_signal(t, ones, symm_int[0], None, 1 - rank)]
    symm_int = symm.zeros(2, dtype=torch.int32, group=world)
    wide = symm.zeros(1, dtype=torch.complex128, group=world)
    for call in value:
        assert raised(call)[0] is ValueError, raised(call)
    for call in [*kind, lambda: symm.atomic_add(wide[0], 1, 0)]:
        assert raised(call)[0] is TypeError, raised(call)
    assert raised(kind[4])[1] == "signal_wait: source is 'x'; give a rank, a sequence of ranks, or None"
    symm.barrier(world)
    assert t.tolist() == [0.0] * 4 and symm_int.tolist() == [0, 0]  # no refused call wrote anything
    return True


def test_what_is_refused():
    run_ranks(2, refused_body)


def wrong_barrier_body(rank):
    """The calling rank alone raises; this rank's next call is the one that the other ranks wait for."""
    world = group()
    word = symm.zeros(1, dtype=torch.int64, group=world)
    for barrier in (lambda timeout: symm.barrier(world, timeout), symm.team(world).barrier, symm.team(world).sync):
        for wrong, kind in (("x", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError)):
            if rank == 1:
                assert raised(barrier, wrong)[0] is kind
                word.add_(1)
            barrier(20)
    return symm.get_peer_tensor(word, 1).item()


def test_a_wrong_timeout_of_a_barrier_is_an_error_of_the_calling_rank_alone():
    assert run_ranks(2, wrong_barrier_body, timeout=20) == [12, 12]


# ---- signals

def signal_body(rank):
    world = group()
    data, ready = (symm.zeros(64, dtype=torch.int64, group=world),
                   symm.zeros(2, dtype=torch.uint64 if hasattr(torch, "uint64") else torch.int64, group=world))
    peer = 1 - rank
    for round in range(1, 200):
        if rank == 0:
            symm.put_signal(data, torch.full((64,), round), ready[1], round, peer)
            assert symm.signal_wait(ready[0], "ge", round, source=1) == round
        else:
            assert symm.signal_wait(ready[1], "==", round) == round
            assert data.tolist() == [round] * 64
            symm.signal_op(ready[0], 1, peer, op="add")
    symm.barrier(world)
    return True


def test_who_sees_the_signal_sees_the_bytes(links):
    run_ranks(2, signal_body)


def plain_store_body(rank):
    """A store by ordinary tensor code ends a wait, too."""
    world = group()
    word = symm.zeros(1, dtype=torch.int32, group=world)
    symm.barrier(world)
    if rank == 0:
        time.sleep(0.02)
        symm.get_peer_tensor(word, 1)[0] = 9
    else:
        assert symm.signal_wait(word[0], "ne", 0, timeout=10) == 9
    symm.barrier(world)
    return True


def test_a_plain_store_ends_a_wait():
    run_ranks(2, plain_store_body)


def timeout_body(rank):
    world = group()
    word = symm.zeros(1, dtype=torch.int32, group=world)
    if rank == 0:
        assert symm.signal_wait(word[0], "eq", 0, timeout=0) == 0  # 0 is now
        assert raised(symm.signal_wait, word[0], "ge", 1, timeout=0)[0] is shardwire.errors.TimeoutError
        kind, text = raised(symm.signal_wait, word[0], "ge", 1, timeout=0.05, source=2)
        assert kind is shardwire.errors.TimeoutError and "nothing else came from rank 2" in text, text
        kind, text = raised(symm.signal_wait, word[0], "ge", 1, timeout=0.05)
        assert "nothing else came from ranks 1, 2" in text, text
    symm.barrier(world)
    if rank == 1:
        assert raised(symm.barrier, world, 0.1)[0] is shardwire.errors.TimeoutError
        kind, text = raised(symm.empty, 3, group=world)
        assert kind is shardwire.errors.TimeoutError and "did not arrive" in text, text
    else:
        kind, text = raised(symm.signal_wait, word[0], "ge", 1, timeout=40)
        assert kind is shardwire.errors.TimeoutError and "did not arrive" in text, text
    return True


def test_timeouts_name_ranks_and_a_barrier_fails_the_group_on_all(links):
    run_ranks(3, timeout_body)


def killed_body(rank, pids, kind):
    world = group()
    word = symm.zeros(2, dtype=torch.int32, group=world)
    mc = symm.get_multicast_tensor(symm.zeros(2, group=world))
    meet("made")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    calls = {"signal": lambda: symm.signal_wait(word[0], "ge", 1), "barrier": lambda: symm.barrier(world),
             "empty": lambda: symm.empty(3, group=world), "free": lambda: symm.free(word),
             "split": lambda: symm.split_2d(world, 2), "red": lambda: forever(mc)}
    error, text = raised(calls[kind])
    assert error is shardwire.errors.PeerFailedError and "rank 2" in text, text
    theirs = symm.get_peer_tensor(word, 2)
    assert theirs.tolist() == [0, 0]  # stays readable
    return True


def forever(mc):
    """A float red needs no help of another rank, so the barrier notices the death: it is of the group in which the red
    takes turns.
    """
    while True:
        mc.red("add", 1.0)
        symm.barrier(group())


@pytest.mark.parametrize("kind", ["signal", "barrier", "empty", "free", "split", "red"])
def test_death_is_named_in_every_wait(kind):
    from ranks import RankFailed
    with pytest.raises(RankFailed) as failure:
        run_ranks(3, killed_body, None, kind, timeout=30)
    text = str(failure.value)
    assert "--- rank 2" in text and "SIGKILL" in text and "--- rank 0" not in text and "--- rank 1" not in text, text


def interrupt_body(rank):
    world = group()
    word = symm.zeros(1, dtype=torch.int32, group=world)
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        began = time.monotonic()
        try:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            symm.signal_wait(word[0], "ge", 1, timeout=25)
        except KeyboardInterrupt:
            assert time.monotonic() - began < 10
            symm.signal_op(word[0], 1, 1)
            return True
        raise AssertionError("not interrupted")
    symm.signal_wait(word[0], "ge", 1, timeout=30)
    return True


def test_ctrl_c_ends_the_wait(links):
    run_ranks(2, interrupt_body)


# ---- atomics

def atomic_body(rank):
    world = group()
    for dtype in DTYPES:
        if torch.empty(0, dtype=dtype).element_size() > 8:
            continue
        word = symm.zeros(3, dtype=dtype, group=world)
        if dtype == torch.bool:
            assert symm.atomic_swap(word[1], True, 0) in (False, True)
        else:
            for _ in range(20):
                symm.atomic_add(word[1], 1, 0)
            symm.atomic_inc(word[1], 0)
        symm.barrier(world)
        wanted = True if dtype == torch.bool else 16 if dtype == getattr(torch, "float8_e4m3fn", None) else 63
        assert symm.atomic_fetch(word[1], 0) == wanted, (dtype, symm.atomic_fetch(word[1], 0))
        assert type(symm.atomic_fetch(word[1], 0)) is type(word[1].to(torch.float32).item() if dtype.is_floating_point
                                                           else word[1].item())
        if rank == 0:
            assert word[0].to(torch.float64 if not dtype.is_complex else dtype).item() == 0
        symm.barrier(world)
    word = symm.zeros(8, dtype=torch.int64, group=world)
    if rank == 1:
        assert symm.atomic_fetch_add(word[0], 5, 2) == 0
        assert symm.atomic_fetch_inc(word[0], 2) == 5
        assert symm.atomic_swap(word[0], -1, 2) == 6
        assert symm.atomic_compare_swap(word[0], 7, 8, 2) == -1
        assert symm.atomic_compare_swap(word[0], -1, 0b1100, 2) == -1
        assert symm.atomic_fetch_and(word[0], 0b0110, 2) == 0b1100
        assert symm.atomic_fetch_or(word[0], 0b0011, 2) == 0b0100
        assert symm.atomic_fetch_xor(word[0], 0b0001, 2) == 0b0111
        symm.atomic_and(word[0], 0b0010, 2)
        symm.atomic_or(word[0], 0b1000, 2)
        symm.atomic_xor(word[0], 0b1000, 2)
        assert symm.atomic_fetch(word[0], 2) == 0b0010
        symm.atomic_set(word[0], -(1 << 63), 2)
    symm.barrier(world)
    if rank == 2:
        assert word.tolist() == [-(1 << 63)] + [0] * 7
    symm.barrier(world)
    return True


def test_atomics(links):
    run_ranks(3, atomic_body)


# ---- teams

def team_body(rank):
    world = symm.team(group())
    assert (world.rank, world.size, world.job_ranks) == (rank, 4, (0, 1, 2, 3)) and symm.team(world) is world
    odd = world.split_strided(1, 2, 2)
    assert (odd is None) == (rank % 2 == 0)
    down = world.split_strided(3, -1, 4)
    assert down.job_ranks == (3, 2, 1, 0) and down.rank == 3 - rank and world.translate(1, down) == 2
    across, along = symm.split_2d(group(), 3)
    assert (across.job_ranks == ((0, 1, 2) if rank < 3 else (3,))
            and along.job_ranks == {0: (0, 3), 1: (1,), 2: (2,), 3: (0, 3)}[rank])
    if odd is not None:
        assert odd.job_ranks == (1, 3) and world.translate(0, odd) is None and odd.translate(1, world) == 3
        t = odd.zeros(4)
        symm.put(t, torch.full((4,), float(rank)), 1 - odd.rank)
        odd.barrier()
        assert t.tolist() == [float(4 - rank)] * 4
        inner = odd.split_strided(odd.size - 1, 1, 1)
        assert (inner is not None) == (rank == 3)
    # The same ranks again, from another object and from a part of the team.
    same = [symm.team(group()).split_strided(0, 1, 4) for _ in range(2)]
    inner = [each.split_strided(0, 1, 4) for each in same for _ in range(2)]
    for index, each in enumerate([*same, *inner]):
        x = torch.tensor([float(index)])
        each.all_reduce(x)
        assert x.item() == 4 * index
    for team in (world, down, across, along):
        n, me = team.size, team.rank
        t = torch.full((4,), me + 1.0)
        team.all_reduce(t)
        assert t.tolist() == [n * (n + 1) / 2] * 4
        out = torch.empty(n)
        team.all_gather(out, torch.tensor([float(me)]))
        assert out.tolist() == list(range(n))
        t = torch.tensor([float(me * 10 + i) for i in range(n)])
        team.all_to_all(out, t)
        assert out.tolist() == [r * 10.0 + me for r in range(n)]
        part = torch.empty(1)
        team.reduce_scatter(part, torch.arange(n, dtype=torch.float32) + me, op="max")
        assert part.item() == me + n - 1
        team.broadcast(t, root=n - 1)
        assert t.tolist() == [(n - 1) * 10.0 + i for i in range(n)]
        team.sync()
    op = shardwire.compile_op(down.group, shape=(4,), dtype=torch.float32,
                              inputs=[{"offset": (down.rank,), "shape": (1,)}],
                              outputs=[{"offset": (0,), "shape": (4,)}])
    out = torch.empty(4)
    op([torch.tensor([float(rank)])], [out]).wait()
    assert out.tolist() == [3.0, 2.0, 1.0, 0.0]
    symm.barrier(world)
    with down:
        down.barrier()
    assert raised(down.barrier)[0] is shardwire.errors.AbortedError  # the end of the block ended the team
    down.destroy()
    world.destroy()  # does not end the group
    symm.barrier(world)
    return True


def test_teams_and_their_collectives(links):
    run_ranks(4, team_body)


# ---- multicast

REDUCTIONS = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def wide_reference(parts, op, dtype):
    """In rank order, accumulated in float32 where the type is narrow, rounded once."""
    wide = torch.float32 if dtype.is_floating_point and parts[0].element_size() <= 2 else dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        part = part.to(wide)
        total = {"add": total.add, "mul": total.mul, "min": lambda x, t=total: torch.minimum(t, x),
                 "max": lambda x, t=total: torch.maximum(t, x), "and": lambda x, t=total: t & x,
                 "or": lambda x, t=total: t | x, "xor": lambda x, t=total: t ^ x}[op](part)
    return total.to(dtype)


def values_of(rank, dtype, count, seed):
    generator = torch.Generator().manual_seed(seed * 10 + rank)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if dtype.is_complex:
        return torch.randint(-3, 4, (count,), generator=generator).to(dtype)
    if dtype.is_floating_point:
        return (torch.rand(count, generator=generator) * 4 - 2).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def multicast_body(rank, seed):
    world = symm.team(group())
    back = world.split_strided(2, -1, 3)
    digests = []
    for dtype in DTYPES:
        t = world.empty(3, 10, dtype=dtype)
        t.copy_(values_of(rank, dtype, 30, seed).view(3, 10))
        world.barrier()
        whole = [values_of(r, dtype, 30, seed).view(3, 10) for r in range(3)]
        integral = not (dtype.is_floating_point or dtype.is_complex)
        ops = [] if dtype == torch.bool else ["add", "mul"] if dtype.is_complex else ["add", "mul", "min", "max"]
        for op in ops + (["and", "or", "xor"] if integral else []):
            for team, order in ((None, [0, 1, 2]), (back, [2, 1, 0])):
                mc = symm.get_multicast_tensor(team, t) if team else symm.get_multicast_tensor(t)
                for index in ((slice(None),), (1,), (slice(0, 3, 2), slice(3, 9, 2)), (2, 5)):
                    if not integral and len(t[index].shape) == 0 and "uint16" in str(dtype):
                        continue
                    got = mc[index].ld_reduce(op)
                    if integral and hasattr(torch, "uint16") and dtype == torch.uint16:
                        wanted = wide_reference([whole[r][index].to(torch.int64) for r in order], op, torch.int64)
                        assert torch.equal(got.to(torch.int64), wanted & 0xFFFF), (op, dtype)
                    else:
                        wanted = wide_reference([whole[r][index] for r in order], op, dtype)
                        assert same_bytes(got, wanted), (seed, op, dtype, index, got, wanted)
                    digests.append(got.contiguous().reshape(-1).view(torch.uint8).tolist())
        if dtype == torch.bfloat16:
            wide = torch.empty(3, 10)
            symm.get_multicast_tensor(t).ld_reduce("add", accumulate=torch.float32, out=wide)
            assert torch.equal(wide, sum((whole[r].float() for r in (1, 2)), whole[0].float()))
            assert (raised(symm.get_multicast_tensor(t).ld_reduce, "add", torch.float64)[0]
                    is shardwire.errors.UnsupportedError)
        world.barrier()
    # A store by one rank, seen by all ranks.
    t = world.zeros(4, 4, dtype=torch.float16)
    mc = symm.get_multicast_tensor(t)
    assert mc.shape == (4, 4) and mc.dtype == torch.float16 and mc.ranks == (0, 1, 2) and "MulticastTensor" in repr(mc)
    assert (mc.numel(), mc.dim(), mc.ndim, mc.element_size(), mc.device.type) == (16, 2, 2, 2, "cpu")
    assert mc.size() == (4, 4) and mc.size(1) == mc.size(-1) == 4 and mc.stride() == (4, 1) and mc[:, 1:].stride(0) == 4
    if rank == 1:
        mc[1:3, ::2].store(torch.tensor([[1.0, 2.0]], dtype=torch.float16))
        mc[0, 0].store(7)
    world.barrier()
    wanted = torch.zeros(4, 4, dtype=torch.float16)
    wanted[1:3, ::2], wanted[0, 0] = torch.tensor([1.0, 2.0], dtype=torch.float16), 7
    assert torch.equal(t, wanted)
    assert raised(lambda: mc[[0, 1]])[0] is IndexError
    assert raised(mc.ld_reduce, "median")[0] is ValueError
    assert raised(mc.ld_reduce, "xor")[0] is TypeError
    world.barrier()
    return digests


def test_multicast_reads_are_rounded_once_in_rank_order_and_the_same_on_every_rank():
    results = run_ranks(3, multicast_body, SEED % 1000)
    assert results[0] == results[1] == results[2]


def red_body(rank):
    world = symm.team(group())
    count = world.zeros(3, 2, dtype=torch.int32)
    floats, halves = world.zeros(257), world.zeros(64, dtype=torch.bfloat16)
    mc, mf, mh = (symm.get_multicast_tensor(t) for t in (count, floats, halves))
    generator = torch.Generator().manual_seed(rank)
    world.barrier()
    for _ in range(40):
        mc[:, 1].red("add", torch.tensor([1, 2, 3], dtype=torch.int32))
        mf.red("add", torch.rand(257, generator=generator) * 1e6)
        mh.red("max", torch.rand(64, generator=generator).to(torch.bfloat16))
    mc[0, 0].red("or", 1 << rank)
    world.barrier()
    assert count.tolist() == [[7, 120], [0, 240], [0, 360]]
    # Floats were added in some order of the calls, the same on all ranks.
    for t in (floats, halves):
        for peer in range(3):
            assert same_bytes(symm.get_peer_tensor(t, peer), t)
    world.barrier()
    # Like a barrier of the seed document: every rank adds to all counters, and waits for its own counter.
    mc[0, 0].store(0) if rank == 0 else None
    world.barrier()
    mc[0, 0].red("add", 1)
    assert symm.signal_wait(count[0, 0], "eq", 3) == 3
    world.barrier()
    return True


def test_red_keeps_all_parts_equal():
    run_ranks(3, red_body)


def values_in_a_part_body(rank):
    world = symm.team(group())
    for dtype in (torch.float32, torch.int64):
        for caller in (0, 1):
            for values in (lambda t: t, lambda t: symm.get_peer_tensor(t, 0), lambda t: symm.get_peer_tensor(t, 1)):
                t = world.zeros(6, dtype=dtype)
                t.fill_(1)
                world.barrier()
                if rank == caller:
                    symm.get_multicast_tensor(t).red("add", values(t))
                world.barrier()
                assert t.tolist() == [2] * 6, (dtype, caller)
    t.copy_(torch.arange(6) + 10 * rank)
    world.barrier()
    if rank == 0:
        symm.get_multicast_tensor(t)[2:].store(t[:4])
    world.barrier()
    assert t.tolist() == [10 * rank, 10 * rank + 1, 0, 1, 2, 3]


def test_values_in_a_part_that_is_written_are_those_before_the_call():
    run_ranks(2, values_in_a_part_body)


def red_over_teams_body(rank):
    world = symm.team(group())
    back = world.split_strided(1, -1, 2)
    t = world.zeros(1 << 14)
    mc = symm.get_multicast_tensor(*((t,) if rank == 0 else (back, t)))
    assert mc.ranks == ((0, 1), (1, 0))[rank]
    for _ in range(40):
        t.fill_(1)
        world.barrier()
        mc.red("add", (2.0 ** 24, -2.0 ** 24)[rank])  # a float32 keeps the 1 only when the second comes first
        world.barrier()
        parts = [symm.get_peer_tensor(t, peer).unique().tolist() for peer in range(2)]
        assert parts in ([[0.0], [0.0]], [[1.0], [1.0]]), parts
        world.barrier()
    return True


def test_red_over_different_teams_comes_in_one_order():
    run_ranks(2, red_over_teams_body)


# ---- several hosts

def requests_killed_body(rank, kind):
    world = group()
    word, data = symm.zeros(2, dtype=torch.int64, group=world), symm.zeros(1000, group=world)
    away = symm.zeros(1, dtype=torch.int64, group=world)
    symm.barrier(world)
    if rank != 2:
        symm.signal_op(away[0], 1, 2, op="add")
    else:
        symm.signal_wait(away[0], "ge", 2)  # both are through the barrier
        os.kill(os.getpid(), signal.SIGKILL)
    calls = {"get": lambda: symm.get(torch.empty(1000), data, 2),
             "get_nbi": lambda: symm.get_nbi(torch.empty(1000), data, 2), "put": lambda: symm.put(data, data, 2),
             "fetch": lambda: symm.atomic_fetch_add(word[0], 1, 2), "signal": lambda: symm.signal_op(word[1], 1, 2),
             "wait": lambda: symm.signal_wait(away[0], "ge", 1)}
    error, text = raised(lambda: [(calls[kind](), symm.quiet()) for _ in iter(int, 1)])  # rank 2 may still serve a call
    assert error is shardwire.errors.PeerFailedError and "rank 2" in text, text
    outcome(symm.quiet)
    symm.quiet()  # the error was raised before
    return True


@pytest.mark.parametrize("kind", ["get", "get_nbi", "put", "fetch", "signal", "wait"])
def test_death_is_named_where_it_is_asked_by_requests(kind, monkeypatch):
    from ranks import RankFailed
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", "tcp")
    with pytest.raises(RankFailed) as failure:
        run_ranks(3, requests_killed_body, kind, timeout=30)
    text = str(failure.value)
    assert "--- rank 2" in text and "SIGKILL" in text and "--- rank 0" not in text and "--- rank 1" not in text, text


def await_state(pid, states):
    """Z: the process has ended; T: the process is stopped."""
    while True:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in states:
                    return
        except (FileNotFoundError, ProcessLookupError):  # gone before, or since, the file was opened
            return
        time.sleep(0.001)


def failed_request_body(rank, store):
    os.environ["SHARDWIRE_HOST_ID"] = "b" if rank == 2 else "a"
    world = symm.team(shardwire.create_process_group(dist.FileStore(store, 3), rank, 3, 30))
    near = world.split_strided(0, 1, 2)
    t, pids = world.zeros(1000), torch.zeros(3, dtype=torch.int64)
    world.all_gather(pids, torch.tensor([os.getpid()]))
    world.barrier()
    if near is None:
        threading.Event().wait()
    near.barrier()
    if rank == 0:
        symm.put(t, t, 2)
        os.kill(int(pids[2]), signal.SIGKILL)
        await_state(int(pids[2]), "ZX")
        kind, text = raised(near.barrier)
        assert kind is shardwire.PeerFailedError and "rank 2" in text, text
    else:
        near.barrier(timeout=20)  # rank 0 has come all the same
    near.barrier()


def test_a_barrier_meets_where_a_request_of_another_group_failed(tmp_path):
    run_ranks(3, failed_request_body, str(tmp_path / "store"), join=False, may_die=(2,))


def stopped_owner_body(rank):
    world = symm.team(group())
    t, pids = world.zeros(1000), torch.zeros(2, dtype=torch.int64)
    world.all_gather(pids, torch.tensor([os.getpid()]))
    world.barrier()
    if rank == 1:
        threading.Event().wait()
    os.kill(int(pids[1]), signal.SIGSTOP)
    await_state(int(pids[1]), "T")
    symm.put(t, t, 1)
    begin = time.monotonic()
    kind, text = raised(world.barrier, timeout=1)
    took = time.monotonic() - begin
    os.kill(int(pids[1]), signal.SIGKILL)
    assert kind is shardwire.TimeoutError and took < 15, (kind, text, took)


def test_a_barriers_timeout_is_also_that_of_the_requests(monkeypatch):
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", "tcp")
    run_ranks(2, stopped_owner_body, timeout=30, may_die=(1,))


def ended_team_body(rank):
    world = symm.team(group())
    team = world.split_strided(0, 1, 2)
    op = shardwire.compile_op(team.group, shape=(2,), dtype=torch.float32, inputs=[{"offset": (rank,), "shape": (1,)}],
                              outputs=[{"offset": (0,), "shape": (2,)}])
    t = team.zeros(8)
    world.barrier()
    symm.put(t, torch.ones(8), 1 - rank)
    world.all_reduce(torch.zeros(1))  # waits for no answer to the put
    team.destroy()
    world.barrier()
    world.barrier()
    del op  # kept the team's engine


def test_a_barrier_does_not_wait_for_requests_of_an_ended_team(monkeypatch):
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", "tcp")
    run_ranks(2, ended_team_body)


def elsewhere_body(rank):
    """The owner's program holds Python's lock and calls nothing: the owner's process serves all the same."""
    world = group()
    t, flag = symm.zeros(1 << 18, group=world), symm.zeros(1, dtype=torch.int64, group=world)
    symm.barrier(world)
    if rank == 1:
        while flag.item() == 0:  # no call of shardwire
            pass
        assert torch.equal(t, torch.arange(float(1 << 18)))
    else:
        symm.put_nbi(t, torch.arange(float(1 << 18)), 1)  # the tensor is dropped at once
        back = torch.empty(1 << 18)
        symm.get_nbi(back, t, 1)
        symm.fence()
        symm.quiet()
        assert torch.equal(back, torch.arange(float(1 << 18)))
        symm.atomic_inc(flag[0], 1)
    symm.barrier(world)
    return True


def test_the_owner_takes_no_part(links):
    run_ranks(2, elsewhere_body)


def hosts_body(rank, store):
    os.environ["SHARDWIRE_HOST_ID"] = "b" if rank == 2 else "a"
    world = shardwire.create_process_group(dist.FileStore(store, 3), rank, 3, 60)
    t = symm.zeros(4, dtype=torch.int32, group=world)
    away = 2 if rank != 2 else 0
    symm.put(t[rank:rank + 1], torch.tensor([rank + 5], dtype=torch.int32), away)
    symm.atomic_add(t[3], 1, away)
    symm.barrier(world)
    assert t.tolist() == {0: [0, 0, 7, 1], 1: [0] * 4, 2: [5, 6, 0, 2]}[rank]
    got = torch.empty(4, dtype=torch.int32)
    symm.get(got, t, 2)
    assert got.tolist() == [5, 6, 0, 2]
    symm.barrier(world)
    t.zero_()
    symm.barrier(world)
    for call in (lambda: symm.get_peer_tensor(t, away), lambda: symm.get_multicast_tensor(t)):
        kind, text = raised(call)
        assert kind is shardwire.UnsupportedError and f"rank {away} is reached by tcp" in text, text
    symm.barrier(world)
    if rank == 0:
        symm.put(t, torch.ones(4, dtype=torch.int32), 1)
    symm.barrier(world)
    assert t.tolist() == [1 if rank == 1 else 0] * 4
    team = symm.team(world)
    here = team.split_strided(0, 1, 2)
    if here is not None:
        assert symm.get_multicast_tensor(here, t).ld_reduce("add").tolist() == [1] * 4
    x = torch.ones(3) * rank
    team.all_reduce(x)
    assert x.tolist() == [3.0] * 3
    symm.free(t)
    symm.barrier(world)
    return True


def test_between_hosts_only_addresses_are_refused(tmp_path):
    run_ranks(3, hosts_body, str(tmp_path / "store"), join=False)


def test_the_garbage_collector_announces_a_dropped_block_too():
    assert all(run_ranks(2, cycle_body))


def cycle_body(rank):
    world = group()
    t = symm.empty(10, group=world)
    cycle = [t]
    cycle.append(cycle)
    del t, cycle
    gc.collect()
    symm.barrier(world)
    symm.free(symm.empty(1, group=world))
    symm.barrier(world)
    symm.free(symm.empty(1, group=world))
    return _C.symm_num_deferred() <= 1
