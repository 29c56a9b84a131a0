"""The names and calls of moodist 0.11.4 in shardwire: what they do, on 2 ranks where they communicate."""

from __future__ import annotations

import json
import pickle
import queue
import threading
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import group, run_ranks

import shardwire
from shardwire import Queue, TensorRegion, compile_op
from shardwire.launch import free_port


def test_a_rank_on_the_host_of_rank_0_keeps_the_name():
    from shardwire.groups import tcp_store
    assert tcp_store._own_name("127.0.1.1", 29500) == "127.0.1.1"


def store_body(rank, port):
    limit = timedelta(seconds=20)
    store = shardwire.TcpStore("localhost", port, "keys", 2, rank, limit)
    again = shardwire.TcpStore(hostname="localhost", port=port, key="keys", world_size=2, rank=rank, timeout=limit)
    other = shardwire.TcpStore("localhost", port, "other", 2, rank, limit)
    for number in range(8):  # of 8 keys some lie with each rank
        store.set(f"{rank} {number}", f"value {number}")
    assert [store.get(f"{1 - rank} {number}") for number in range(8)] == [b"value %d" % number for number in range(8)]
    assert not again.check([f"{rank} 0"]) and not other.check([f"{rank} 0"])
    store.set(f"{rank}" * 10000, "long")
    assert store.get(f"{1 - rank}" * 10000) == b"long" and not store.check([f"{rank}" * 10001])
    served = [store._served_by(each).num_keys() for each in range(2)]
    assert min(served) > 0 and store.num_keys() == sum(served)
    # A thread that waits does not hold up this thread, which sets the key.
    got = []
    waiting = threading.Thread(target=lambda: got.append(again.get(f"late {rank}")))
    waiting.start()
    again.add("arrived", 1)
    again.set(f"late {rank}", b"now")
    waiting.join(20)
    assert got == [b"now"]
    with pytest.raises(Exception, match="(?i)time"):
        store.wait(["never"], timedelta(seconds=0.05))
    # By C++: a group over this store, and the store's calls through a prefix.
    made = shardwire.create_shardwire_backend(other, rank, 2, timedelta(seconds=20))
    assert isinstance(made, shardwire.ShardwireProcessGroup) and isinstance(
        shardwire.resolve_backend(made), shardwire.ShardwireBackend)
    assert not isinstance(3, shardwire.ShardwireProcessGroup)
    ones = torch.ones(3)
    made.allreduce([ones]).wait()
    assert ones.tolist() == [2.0] * 3
    second = shardwire.ShardwireProcessGroup(other, rank, 2)
    second.barrier().wait()
    prefixed = dist.PrefixStore("p", store)
    prefixed.add("n", 2)
    made.barrier().wait()
    assert prefixed.add("n", 0) == 4
    made.barrier().wait()
    if rank == 0:
        assert prefixed.delete_key("n") and not store.check(["p/n"])
        assert store.compare_set("fresh", "", "first") == b"first"
    for each in (second, made):
        each.barrier().wait()
        shardwire.end_process_group(each)


def test_a_store_whose_keys_lie_with_all_ranks():
    run_ranks(2, store_body, free_port(), join=False)


def url_body(rank, port):
    dist.init_process_group("shardwire", init_method=f"shardwire://localhost:{port}?rank={rank}&world_size=2")
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    return total.item()


def test_ranks_meet_by_a_url():
    assert run_ranks(2, url_body, free_port(), join=False) == [3.0, 3.0]
    with pytest.raises(ValueError, match="lacks a port, rank, world_size"):
        next(dist.rendezvous("shardwire://localhost"))


def queue_body(rank, _):
    # By position: process_group, location, streaming, name.
    q = Queue(group(), 0, False, "by position")
    assert (q.name, q.location, q.locations, q.streaming) == ("by position", 0, (0,), False)
    assert q.process_group_name == "my_group" and q.impl.name() == q.name
    same = Queue(process_group=group(), location=0, streaming=False, name="by position")
    assert same.held is not None and Queue(group(), 0, "by position").name == q.name
    with pytest.raises(TypeError, match="'name'"):
        Queue(group(), 0, False, "a", name="b")
    with pytest.raises(TypeError, match="process_group"):
        Queue(group(), 0, process_group=group())
    back = Queue("my_group", [0, 1], True, "back")
    assert (back.location, back.locations, back.streaming) == ([0, 1], (0, 1), True)
    if rank == 1:
        with q.transaction() as both:
            assert both.queue is q
            q.put_tensor(torch.arange(3), transaction=both.id)
            q.put_object(object={"a": 1}, transaction=both)
            assert back.empty()
        with pytest.raises(ValueError, match="no open transaction"):
            q.put_tensor(torch.zeros(1), transaction=both.id)
        with pytest.raises(RuntimeError, match="dropped"):
            with shardwire.TransactionContextManager(queue=q) as dropped:
                q.put_object("lost", transaction=dropped.id)
                raise RuntimeError("dropped")
        q.put_object("last")
    else:
        assert q.get_tensor(timeout=20).tolist() == [0, 1, 2] and q.get_object(timeout=20) == {"a": 1}
        assert q.get_object(timeout=20) == "last"
        assert shardwire.Empty is queue.Empty
        with pytest.raises(shardwire.Empty):
            q.get_object(block=False)
        back.put_object("done")
    assert back.get_object(timeout=20) == "done"
    same, other = pickle.loads(pickle.dumps(q)), pickle.loads(pickle.dumps(back))
    assert (same.name, same.location, same.streaming) == ("by position", 0, False)
    assert (other.location, other.streaming, other.process_group_name) == ((0, 1), True, "my_group")
    assert q.impl.qsize() == 0


def test_queues_by_moodists_calls():
    run_ranks(2, queue_body, None)


def serialized_body(rank, holder):
    q = Queue(group(), holder)
    whole = shardwire.serialize({"a": torch.arange(3), "b": "x" * 70000})
    if rank == 1:
        for tensor in (whole, whole[:1], torch.zeros(5, dtype=torch.uint8), whole[None], whole[:-1]):
            q.put_tensor(tensor)
        q.put_tensor(shardwire.serialize(threading.Event, allow_pickle=True))
        q.put_tensor(whole)
        return
    found, left = q.get_object(return_size=True)
    assert found["a"].tolist() == [0, 1, 2] and found["b"] == "x" * 70000 and left >= 0
    for number in range(4):  # no objects: each stays in the queue
        with pytest.raises(TypeError, match=r"the next entry is a tensor \(uint8.*in the queue still"):
            q.get_object()
        assert q.get_tensor().shape == (whole[:1], torch.zeros(5), whole[None], whole[:-1])[number].shape
    with pytest.raises(ValueError, match="written by pickle"):
        q.get_object()
    assert shardwire.deserialize(q.get_tensor(), allow_pickle=True) is threading.Event
    assert torch.equal(q.get_tensor(), whole)


@pytest.mark.parametrize("holder", [0, 1])
def test_an_object_that_was_put_as_serialized_bytes(holder):
    run_ranks(2, serialized_body, holder)


def compile_body(rank, _):
    mine = [TensorRegion([2 * rank], [2], "cpu")]
    whole = [{"offset": [0], "shape": [4], "device": "cpu"}]
    here = torch.tensor([1.0, 2.0]) + 10 * rank
    # Rank 0 alone gives outputs, rank 1 none: None by position.
    op = compile_op(group(), torch.float32, mine, whole if rank == 0 else None)
    out = [torch.zeros(4)] if rank == 0 else []
    op([here], out).wait()
    if rank == 0:
        assert out[0].tolist() == [1.0, 2.0, 11.0, 12.0]
    # Equal inputs on both ranks: "any", by position and by name.
    for again in (compile_op(group(), torch.float32, whole, whole, "any", True),
                  compile_op(group=group(), dtype=torch.float32, inputs=whole, outputs=whole, reduce="any")):
        result = torch.zeros(4)
        again([torch.arange(4.0)], [result]).wait()
        assert result.tolist() == [0.0, 1.0, 2.0, 3.0]
    total = torch.zeros(4)
    compile_op(group(), torch.float32, whole, whole, reduce="sum")([torch.ones(4)], [total]).wait()
    assert total.tolist() == [2.0] * 4
    with pytest.raises(TypeError, match="rank 0: reduce is given"):
        compile_op(group(), torch.float32, whole, whole, reduce="sum", reduction="sum" if rank == 0 else None)
    with pytest.raises(TypeError, match="two values for 'inputs'"):
        compile_op(group(), torch.float32, whole, inputs=whole)


def test_compile_op_by_moodists_calls():
    run_ranks(2, compile_body, None)


def default_id_body(rank, _):
    # A region without tensor_id is one of tensor "0", as in moodist.
    mixed = [TensorRegion([4 * rank], [1]), TensorRegion([4 * rank + 1], [1], tensor_id="0"),
             {"offset": [4 * rank + 2], "shape": [1], "tensor_id": 0}, {"offset": [4 * rank + 3], "shape": [1]}]
    parts = [torch.tensor([4.0 * rank + place]) for place in range(4)]
    out = torch.zeros(8)
    op = compile_op(group(), dtype=torch.float32, inputs=mixed, outputs=[TensorRegion([0], [8], tensor_id="0")])
    assert [tensor.name for tensor in op.tensors] == ["0"]
    op(parts, [out]).wait()
    assert out.tolist() == list(range(8))
    out.zero_()
    op = compile_op(group(), dtype=torch.float32, inputs={"0": mixed}, outputs=[TensorRegion([0], [8])])
    op({"0": parts}, [out]).wait()
    assert out.tolist() == list(range(8))
    named = compile_op(group(), dtype=torch.float32, inputs=[TensorRegion([rank], [1])], outputs=[
        TensorRegion([0], [2])])
    assert [tensor.name for tensor in named.tensors] == [""]


def test_regions_without_and_with_the_name_0_are_of_one_tensor():
    run_ranks(2, default_id_body, None)


def test_regions_and_shards_can_be_changed():
    region = TensorRegion([0], [4], "cpu", tensor_id="w")
    region.offset, region.tensor_id = [4], "v"
    assert region == TensorRegion([4], [4], "cpu", "v")
    layout = shardwire.Layout([0], [shardwire.Replicate()], (2, 3), torch.float32)
    shard = shardwire.dtensor_shards(layout, coord=(0,))[0]
    assert shard == shardwire.ShardInfo([0, 0], [0, 0], [2, 3])
    shard.shape[0] = shard.global_offset[0] = 1
    shard.local_offset = [5, 5]
    assert shard == shardwire.ShardInfo([1, 0], [5, 5], [1, 3])


def test_bytes_are_copied_whatever_the_dtype():
    dst = torch.zeros(2, dtype=torch.int64)
    assert shardwire.cuda_copy(dst, torch.tensor([1, 0, 2, 0], dtype=torch.int32)) is None
    assert dst.tolist() == [1, 2]
    shardwire.cuda_copy(dst=dst, src=torch.tensor([[5], [6]]))
    assert dst.tolist() == [5, 6]
    with pytest.raises(ValueError, match="dst is 16 bytes, src is 8 bytes"):
        shardwire.cuda_copy(dst, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="contiguous"):
        shardwire.cuda_copy(dst, torch.zeros(4, dtype=torch.int64)[::2])


def test_the_state_of_the_heap_is_printed(capsys):
    held = shardwire.empty(1000)
    shardwire.cpu_allocator_debug()
    printed = capsys.readouterr().out
    assert "takes no new CPU tensors" in printed and int(printed.split("; ")[1].split()[0]) >= held.numel() * 4


def test_objects_by_moodists_names_of_arguments():
    assert shardwire.deserialize(x=shardwire.serialize(x=[1, "a"])) == [1, "a"]


def options_body(rank, _):
    options = shardwire.ShardwireOptions(group())
    assert (options.prefer_kernel_less, options.num_chunks, options.method) == (False, None, None)
    options.num_chunks, options.force_kernel_less = 4, 1
    with options(num_chunks=2, prefer_kernel_less=True) as same:
        assert same is group() and (options.num_chunks, options.prefer_kernel_less) == (2, True)
        with pytest.raises(KeyError), shardwire.ShardwireOptionsContext("my_group", {"num_chunks": -1}):
            assert options.num_chunks is None
            raise KeyError
        assert options.num_chunks == 2
    assert (options.num_chunks, options.prefer_kernel_less, options.force_kernel_less) == (4, False, True)
    with shardwire.PreferKernelLessContext(group(), True):
        assert options.prefer_kernel_less is True
    assert shardwire.PreferKernelLessContext(group(), False).old_value is False
    other = shardwire.ShardwireOptions(dist.new_group())
    shardwire.set_prefer_kernel_less(True)
    assert other.prefer_kernel_less is True and options.prefer_kernel_less is False
    for value, number in ((2.0, 2), (2.7, 2), ("3", 3), (True, 1), (np.int64(4), 4), (torch.tensor(5), 5),
                          ("-1", None)):
        options.method = value
        assert options.method == number and type(options.method) in (int, type(None))
    for wrong, kind in (({"chunks": 2}, ValueError), ({"num_chunks": "many"}, ValueError), ({"method": [1]}, TypeError),
                        ({"chunk_size": float("inf")}, ValueError)):
        with pytest.raises(kind):
            options(**wrong)
    with pytest.raises(AttributeError, match="'chunks' is no option; there are prefer_kernel_less"):
        options.chunks
    with pytest.raises(AttributeError):
        options.chunks = 2
    with pytest.raises(TypeError, match="group is a int"):
        shardwire.ShardwireOptions(3)


def test_options_of_groups_are_kept():
    run_ranks(1, options_body, None, default_group=True)


def methods_body(rank, _):
    from shardwire.adapters import moodist
    moodist.use()
    moodist.use()  # changes nothing
    made = shardwire.create_shardwire_backend(dist.PrefixStore("methods", dist.distributed_c10d._get_default_store()),
                                              rank, 2, timedelta(seconds=20))
    for each in (group(), dist.new_group(), made):
        name = each.moodist_name()
        assert name and shardwire.find_process_group(name) is each
        assert each.get_prefer_kernel_less() is False
        with each.prefer_kernel_less(True):
            assert each.get_prefer_kernel_less() is True
        each.set_prefer_kernel_less(True)
        assert shardwire.ShardwireOptions(each).prefer_kernel_less is True
        if hasattr(dist.ProcessGroup, "_register_backend"):  # before, a group is the backend, with other options
            with each.options(num_chunks=3) as same:
                assert same is each and each.options().num_chunks == 3
        q = each.Queue(location=0)
        named = each.Queue(1, False, "a name")
        assert named.name == "a name"
        q.put_object(rank)
        each.barrier()
        if rank == 0:
            assert sorted(q.get_object(timeout=20) for _ in range(2)) == [0, 1]
        work = each.barrier()
        assert work.is_completed() and work.wait() in (True, None)
    dist.barrier()
    dist.barrier(async_op=True).wait()
    shardwire.end_process_group(made)


def test_methods_of_moodists_groups():
    run_ranks(2, methods_body, None, default_group=True)


def profile_body(rank, folder):
    import os
    os.chdir(folder)
    named = shardwire.create_process_group(dist.FileStore(f"{folder}/store", 2), rank, 2, 30, "profiled")
    dist.all_reduce(torch.ones(2))  # before
    shardwire.enable_profiling(True)
    dist.all_reduce(torch.ones(7))
    named.barrier().wait()
    message = torch.zeros(3)
    dist.send(message, 1) if rank == 0 else dist.recv(message, 0)
    shardwire.enable_profiling(False)
    dist.all_reduce(torch.ones(5))  # after
    shardwire.enable_profiling(False)  # nothing to write
    with open(f"shardwire-trace-{rank}.json") as file:
        events = json.load(file)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert any("float32[7]" in span["name"] for span in spans), spans
    assert not any(f"float32[{count}]" in span["name"] for span in spans for count in (2, 5))
    assert all(span["dur"] >= 0 and span["pid"] == os.getpid() for span in spans)
    lines = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {span["tid"] for span in spans} == set(lines) and "group profiled" in lines.values(), lines
    assert any(span["name"].startswith(("send", "recv")) for span in spans), spans


def test_profiling_writes_the_operations_of_its_time(tmp_path):
    run_ranks(2, profile_body, str(tmp_path), default_group=True)
