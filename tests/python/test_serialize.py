"""serialize and deserialize: random graphs keep their shape, unreadable bytes raise errors, and nothing is executed."""

from __future__ import annotations

import abc
import copy
import itertools
import os
import random
import struct
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import shardwire
from shardwire import deserialize, serialize
from shardwire.plain import keys as plain_keys, read as plain_read, user_classes as plain_records, write as plain_write

SEED = int(os.environ.get("SHARDWIRE_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool,
          torch.complex64]


@dataclass
class Point:
    x: int
    y: torch.Tensor


@dataclass(frozen=True)
class Frozen:
    name: str
    parts: tuple = ()

    def __post_init__(self):
        assert not self.name.startswith("made by"), "reading runs code of the class"


class Pair(NamedTuple):
    left: Any
    right: Any = None


@dataclass
class Node:
    value: Any
    next: Any = None


for known in (Frozen, Pair, Node):
    shardwire.register_plain(known)


class Trap:
    fired = False

    def __reduce__(self):
        return _fire, ()


def _fire():
    Trap.fired = True


def there_and_back(value, **options):
    return deserialize(serialize(value, **options), **options)


ATOMS = [None, True, False, 0, -1, 255, -(1 << 63), (1 << 63) - 1, 1 << 63, -(1 << 200), 0.0, -0.0, float("inf"),
         1e-300, 1 + 2j, "", "a" * 31, "b" * 32, "ñ 你好 🎉 \udc80", b"", b"\0\xff" * 40, bytearray(b"xyz"),
         range(3, -9, -2), slice(None, 4, 2), torch.bfloat16, torch.device("cpu"), torch.Size([2, 0, 3]),
         np.float32(1.5), np.datetime64("2026-01-02"), np.bool_(True), np.str_(""), np.bytes_(b"")]


@pytest.mark.parametrize("value", ATOMS, ids=[f"{number}-{type(value).__name__}" for number, value in enumerate(ATOMS)])
def test_atoms_keep_value_and_type(value):
    back = there_and_back(value)
    assert type(back) is type(value) and back == value
    assert str(back) == str(value)  # -0.0


def random_tensor(rng):
    dtype = rng.choice(DTYPES)
    shape = [rng.randint(0 if rng.random() < 0.1 else 1, 5) for _ in range(rng.randint(0, 3))]
    whole = (torch.rand(shape) * 100).to(dtype)
    return whole.t() if whole.dim() == 2 and rng.random() < 0.3 else whole


def random_graph(rng, pool, depth=0):
    """A random value; `pool` has containers and tensors that may appear again, unfinished containers included."""
    if pool and rng.random() < 0.15:
        return rng.choice(pool)
    roll = rng.random()
    if depth > 5 or roll < 0.3:
        return rng.choice(ATOMS)
    if roll < 0.45:
        pool.append(random_tensor(rng))
        return pool[-1]
    made = rng.choice([list, dict, OrderedDict, tuple, set])
    count = rng.randint(0, 4)
    if made is tuple:
        value = tuple(random_graph(rng, pool, depth + 1) for _ in range(count))
        pool.append(value)
    elif made is set:
        value = {rng.choice([1, "two", (3, "x" * 40), None, frozenset([5, (6,)])]) for _ in range(count)}
        pool.append(value)
    elif made is list:
        value = []
        pool.append(value)
        value.extend(random_graph(rng, pool, depth + 1) for _ in range(count))
    else:
        value = made()
        pool.append(value)
        for number in range(count):
            value[rng.choice([number, f"key {number}", (number, "t")])] = random_graph(rng, pool, depth + 1)
    return value


def same(one, other, seen):
    """Whether two graphs are alike: types, values, order of dicts, and which parts are one object."""
    assert type(one) is type(other), (one, other)
    if id(one) in seen or isinstance(one, (list, dict, set, bytearray, torch.Tensor)):
        if id(one) in seen:
            if isinstance(one, (list, dict, set, torch.Tensor)):
                assert seen[id(one)] is other, "a shared reference was split, or two were joined"
            return
        seen[id(one)] = other
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key], seen)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other):
            same(left, right, seen)
    else:
        assert one == other


def test_random_graphs_come_back_alike():
    print("seed", SEED)
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    for _ in range(400):
        pool = []
        graph = [random_graph(rng, pool), pool]
        same(graph, there_and_back(graph), {})
        same(graph, there_and_back(graph, allow_pickle=True), {})


def test_cycles_through_every_container_and_any_depth():
    loop = [1]
    loop.append({"loop": loop, "tuple": (loop,)})
    back = there_and_back(loop)
    assert back[1]["loop"] is back and back[1]["tuple"][0] is back
    deep = value = []
    for _ in range(20000):
        value.append(([],))
        value = value[0][0]
    back, depth = there_and_back(deep), 0
    while back:
        back, depth = back[0][0], depth + 1
    assert depth == 20000


def nested(depth, inner=()):
    for _ in range(depth):
        inner = (inner,)
    return inner


def head_of(*nodes):
    """The bytes of serialize for a graph with the last node as root."""
    head = b"SWG1" + struct.pack("<IcI", len(nodes), b"R", len(nodes) - 1) + b"".join(nodes)
    return torch.frombuffer(bytearray(struct.pack("<4sBBxxIQ", b"SWOB", 1, 0, 0, len(head)) + head), dtype=torch.uint8)


def reference(number):
    return struct.pack("<cI", b"R", number)


KINDS_WITH_KEYS = {b"d": lambda key: {key: 1}, b"o": lambda key: OrderedDict({key: 1}), b"S": lambda key: {key},
                   b"Z": lambda key: frozenset([key])}


def chain(depth, first=0):
    """Nodes of tuples in each other, which have the numbers from `first`."""
    return ([struct.pack("<cI", b"t", 1) + reference(first + number) for number in range(1, depth)]
            + [struct.pack("<cI", b"t", 0)])


def holder(kind, *keys):
    value = struct.pack("<cq", b"i", 1) if kind in b"do" else b""
    return struct.pack("<cI", kind, len(keys)) + b"".join(reference(key) + value for key in keys)


@pytest.mark.parametrize("kind", list(KINDS_WITH_KEYS))
def test_a_key_is_as_deep_as_can_be_hashed(kind):
    """Python hashes nested tuples on C's stack, uncounted."""
    make = KINDS_WITH_KEYS[kind]
    for value in (make(nested(999)), make(nested(990, ("x" * 40, 5, (), frozenset([nested(800)]))))):
        back = there_and_back(value)
        assert type(back) is type(value) and len(back) == 1
        assert hash(next(iter(back))) == hash(next(iter(value)))
    with pytest.raises(TypeError, match="more than 1000 tuples in each other"):
        serialize(make(nested(1001)))
    assert type(deserialize(head_of(*chain(1000), holder(kind, 0)))) is type(make(1))
    with pytest.raises(ValueError, match="more than 1000 tuples in each other"):
        deserialize(head_of(*chain(1100), holder(kind, 0)))


def test_keys_that_only_broken_bytes_have():
    tuples = chain(150_000)
    with pytest.raises(ValueError, match="more than 1000 tuples in each other"):
        deserialize(head_of(*tuples, holder(b"d", 0)))
    assert type(deserialize(head_of(*tuples, holder(b"l", 0)))[0]) is tuple, "what is no key may be deeper"
    twice = head_of(*chain(999), *chain(999, 999), holder(b"S", 0, 999))
    try:
        assert len(deserialize(twice)) == 1
    except ValueError as error:  # a comparison recurses deeper than this Python permits
        assert "cannot be in it" in str(error)


def doubled(kind, depth, first=0):
    """Nodes with the next node twice in each: 2^depth values, as each node counts at every visit."""
    return ([struct.pack("<cI", kind, 2) + 2 * reference(first + number) for number in range(1, depth)]
            + [struct.pack("<cI", b"t", 0)])


def paired(depth, first=0):
    """Like doubled(), of frozensets, which keep their hashes, but are compared: each holds two tuples with the next
    frozenset.
    """
    nodes = []
    for number in range(first, first + 3 * depth, 3):
        nodes.append(struct.pack("<cI", b"Z", 2) + reference(number + 1) + reference(number + 2))
        nodes += [struct.pack("<cI", b"t", 2) + reference(number + 3) + struct.pack("<cq", b"i", each)
                  for each in (0, 1)]
    return [*nodes, struct.pack("<cI", b"t", 0)]


READS = """
import sys, torch, shardwire
try:
    shardwire.deserialize(torch.frombuffer(bytearray(sys.stdin.buffer.read()), dtype=torch.uint8))
except ValueError as error:
    print(error)
"""


@pytest.mark.any_torch
@pytest.mark.parametrize("kind", list(KINDS_WITH_KEYS))
@pytest.mark.parametrize("keys", [[*doubled(b"t", 100)], [*paired(100), *paired(100, 301)]], ids=["hashed", "compared"])
def test_keys_that_would_be_hashed_or_compared_for_ever_are_refused(kind, keys):
    nodes = [*keys, holder(kind, *range(0, len(keys), 301))]
    # Hashing in C does not react to signals, so this runs in a process that can be killed.
    done = subprocess.run([sys.executable, "-c", READS], input=bytes(head_of(*nodes).numpy()), capture_output=True,
                          timeout=120, check=True)
    assert (f"more than {plain_keys.MOST_IN_KEYS} values in all" in done.stdout.decode()
            and "with those of node" in done.stdout.decode()), done


def test_what_is_no_key_may_share_as_it_likes():
    value = deserialize(head_of(*doubled(b"t", 100), holder(b"l", 0)))[0]
    assert type(value) is tuple and value[0] is value[1]
    assert serialize([value]).numel() < 10_000


def test_writer_and_reader_count_what_keys_hold_alike(monkeypatch):
    """The reader accepts all output of the writer."""
    shared = tuple(range(20))
    twice = ((shared, shared), "x" * 40, frozenset([shared, torch.Size([2, 3])]))
    values = [{(shared, number): number for number in range(10)}, OrderedDict({twice: 1, shared: [2]}),
              {twice, frozenset([twice]), "y" * 40, 5},
              frozenset([(frozenset([shared]), torch.Size([4])), torch.Size([4])])]
    for value in values:
        head, parts = plain_write.write([value, [shared]])
        readers, make = [], plain_read._Reader
        monkeypatch.setattr(plain_read, "_Reader", lambda *given: readers.append(make(*given)) or readers[-1])
        assert plain_read.read(head, parts) == [value, [shared]]
        (reader,) = readers
        monkeypatch.setattr(plain_keys, "MOST_IN_KEYS", reader.keys.count - len(head))
        assert there_and_back([value, [shared]]) == [value, [shared]]
        monkeypatch.setattr(plain_keys, "MOST_IN_KEYS", reader.keys.count - len(head) - 1)
        with pytest.raises(TypeError, match="keys and members that share tuples"):
            serialize([value, [shared]])
        with pytest.raises(ValueError, match="keys and members that share tuples"):
            plain_read.read(head, parts)
        monkeypatch.undo()


def test_a_text_keeps_no_second_copy_and_a_class_without_hash_is_a_type_error():
    text = "é" * 1000
    size = sys.getsizeof(text)
    assert there_and_back([text, {"ü" * 5: "\ud800"}]) == [text, {"ü" * 5: "\ud800"}]
    assert sys.getsizeof(text) == size
    unhashed = type("Unhashed", (type,), {"__hash__": None})("Odd", (), {})()
    with pytest.raises(TypeError, match="unhashable"):
        serialize([unhashed])


def test_registered_classes_come_back_without_pickle():
    tensor = torch.arange(6.0)
    ring = Node(1)
    ring.next = Node([ring, Pair(ring, tensor)], next="y" * 40)
    value = {"flat": Pair(1, "x" * 50), "deep": Pair(Pair(tensor, tensor[2:]), [Frozen("a", (Pair(1, 2),))]),
             "ring": ring, Pair(1, Pair(2, 3)): {Pair(4, 5), 6}}
    back = there_and_back(value)
    assert list(back) == list(value) and back[Pair(1, Pair(2, 3))] == {Pair(4, 5), 6}
    assert type(back["flat"]) is Pair and back["flat"] == value["flat"]
    left, (frozen,) = back["deep"]
    assert (type(left) is Pair and torch.equal(left.right, tensor[2:])
            and left.left.data_ptr() + 8 == left.right.data_ptr()), "shared memory was split"
    assert type(frozen) is Frozen and frozen == Frozen("a", (Pair(1, 2),))
    (first, pair), ring = back["ring"].next.value, back["ring"]
    assert (type(ring) is Node and first is ring and pair.left is ring and pair.right is left.left
            and ring.next.next == "y" * 40)


def test_only_what_the_reader_registered_is_made(monkeypatch):
    made = Frozen("a", (1,))
    object.__setattr__(made, "name", "made by nobody's __init__")
    assert there_and_back(made).name == made.name
    whole = serialize([made, Pair(1)])
    monkeypatch.setattr(plain_records, "by_name", {})
    monkeypatch.setattr(plain_read, "by_name", plain_records.by_name)
    with pytest.raises(ValueError, match=r"class '\S*Frozen' is in it, which this process has not registered; call "
                                         r"shardwire.register_plain"):
        deserialize(whole)

    @dataclass
    class Other:
        names: str
    shardwire.register_plain(Other, name=f"{__name__}.Mine")
    with pytest.raises(ValueError, match="give .*another name"):
        shardwire.register_plain(Frozen, name=f"{__name__}.Mine")
    plain_records.by_name[f"{__name__}.Frozen"] = plain_records.by_name[f"{__name__}.Mine"]
    with pytest.raises(ValueError,
                       match=r"written with the fields \['name', 'parts'\], and is registered here with \['names'\]"):
        deserialize(whole)


@pytest.mark.parametrize(
    "keys", [{Frozen("a"): 1}, {(1, (Frozen("a"), 2)): 1}, {Frozen("a"), 2}, frozenset([Pair(Frozen("a"))])])
def test_a_dataclass_is_no_key(keys, monkeypatch):
    """The fields of a dataclass are set after keys were hashed."""
    with pytest.raises(TypeError, match="a dataclass as a key or member"):
        serialize([keys])
    monkeypatch.setattr(plain_keys.WrittenKeys, "add", lambda self, keys: "")
    with pytest.raises(ValueError, match="a dataclass as a key or member, in node"):
        deserialize(serialize([keys]))


def test_what_cannot_be_registered():
    class Half(abc.ABC):
        @abc.abstractmethod
        def method(self): ...

    for kind, error in ((int, TypeError), (5, TypeError), (tuple, TypeError), (dataclass(Half), TypeError)):
        with pytest.raises(error):
            shardwire.register_plain(kind)
    with pytest.raises(TypeError):
        shardwire.register_plain(Pair, name="")

    @dataclass
    class Behind:
        x: int

        def set_x(self, value):
            raise AssertionError("reading runs code of the class")
    Behind.x = property(lambda self: 1, Behind.set_x)
    with pytest.raises(TypeError, match="its field 'x' is a property, whose code would run"):
        shardwire.register_plain(Behind)

    @dataclass
    class InSlots:
        __slots__ = ("x",)
        x: int
    shardwire.register_plain(InSlots)
    assert there_and_back(InSlots(3)).x == 3
    unset = object.__new__(Node)
    with pytest.raises(TypeError, match="Node of which a field is not set"):
        serialize(unset)
    with pytest.raises(TypeError, match=r"register_plain\(Point\) on both ends makes it one"):
        serialize(Point(1, torch.ones(1)))


def test_tensors_are_views_and_shared_memory_stays_shared():
    base = torch.arange(1000.0)
    whole = serialize(
        {"base": base, "row": base.view(10, 100)[3], "columns": base.view(10, 100)[:, ::7], "alone": torch.ones(5)})
    back = deserialize(whole)
    begin, end = whole.data_ptr(), whole.data_ptr() + whole.numel()
    assert all(begin <= tensor.data_ptr() < end for tensor in back.values()), "a tensor was copied"
    back["base"].fill_(-1)
    assert (back["row"] == -1).all() and (back["columns"] == -1).all() and (back["alone"] == 1).all()
    assert whole.numel() < 4000 + 1000, "shared memory was written more than once"
    small = serialize([torch.zeros(1 << 20)[5:8]])
    assert small.numel() < 1000, "a slice brought all of its memory along"


def test_views_that_lie_apart_are_written_without_the_bytes_between_them():
    table = torch.arange(1_000_000.0).view(100_000, 10)
    views = [table[0], table[99_999], table[99_998:], torch.nn.Parameter(table[50_000]), table[50_000, 5:]]
    whole = serialize(views)
    assert whole.numel() < 2000, "the bytes between the views were written"
    first, last, two, parameter, half = back = deserialize(whole)
    assert all(torch.equal(one, other) for one, other in zip(back, views)) and type(parameter) is torch.nn.Parameter
    last.fill_(-1)
    parameter.data.fill_(-2)
    assert (two[1] == -1).all() and (half == -2).all(), "shared memory was split"
    assert torch.equal(first, table[0]) and torch.equal(two[0], table[99_998])
    # Views without a gap between them remain one part, as one copy
    assert len(plain_write.write(list(torch.arange(64.0).split(8)))[1]) == 1


def test_storages_of_one_address_and_different_lengths_share_memory():
    array = np.arange(10.0)
    for views in [array[:5], array], [array, array[:5]], [array[:5], array[:7], array[2:]]:
        back = there_and_back([torch.from_numpy(view) for view in views])
        assert all(there.numpy().tolist() == view.tolist() for there, view in zip(back, views))
        back[0][3] = -1.0
        assert back[1][3] == -1.0, "shared memory was split"


def test_random_views_share_memory_where_their_bytes_overlap():
    rng = random.Random(SEED)
    for _ in range(200):
        base = torch.arange(400, dtype=torch.int32)
        spans = []
        for _ in range(rng.randint(2, 8)):
            begin, size, step = rng.randrange(300), rng.randint(1, 20), rng.randint(1, 5)
            spans.append((begin, begin + (size - 1) * step + 1, step))
        views = [base[begin:end:step] for begin, end, step in spans]
        head, parts = plain_write.write(views)
        back = plain_read.read(head, parts)
        needed = set().union(*(range(begin, end) for begin, end, _ in spans))
        assert sum(part.numel() for part in parts) <= 4 * len(needed), f"too many bytes, seed {SEED}"
        for (one, there), (other, also_there) in itertools.combinations(zip(spans, back), 2):
            if max(one[0], other[0]) < min(one[1], other[1]):
                assert (there.data_ptr() - also_there.data_ptr()
                        == 4 * (one[0] - other[0])), f"shared memory was split, seed {SEED}"
        for view, there in zip(views, back):
            assert torch.equal(view, there), f"seed {SEED}"


def test_parameters_gradients_and_numpy():
    parameter, leaf = torch.nn.Parameter(torch.rand(3)), torch.rand(2, requires_grad=True)
    frozen = torch.nn.Parameter(torch.rand(3), requires_grad=False)
    array = np.arange(6, dtype=">i4").reshape(2, 3)[:, ::-1]
    array.flags.writeable = False
    back = there_and_back([parameter, leaf, frozen, array, np.array(["é", "ab"]), np.zeros((0, 3)), (leaf * 2)])
    assert type(back[0]) is torch.nn.Parameter and back[0].requires_grad and torch.equal(back[0], parameter)
    assert back[1].requires_grad and back[1].is_leaf and not back[2].requires_grad and not back[6].requires_grad
    assert (back[3].dtype == array.dtype and (back[3] == array).all() and list(back[4]) == ["é", "ab"]
            and back[5].shape == (0, 3))
    for value in (np.array(5.0), np.array("abc"), np.ndarray((1,), "<U0"), np.zeros((0, 5), "S1")):
        array = there_and_back(value)
        assert (type(array) is np.ndarray and array.dtype == value.dtype and array.shape == value.shape
                and (array == value).all())
    assert torch.equal(there_and_back(torch.tensor([1 + 2j]).conj()), torch.tensor([1 - 2j]))


@pytest.mark.parametrize("value",
                         [Point(1, torch.ones(2)), Trap(), len, Point, np.array([object()]), torch.ones(2).to_sparse(),
                          slice(np.int64(0), 3), slice(torch.tensor(1), 3), slice(None, 1.5)],
                         ids=["dataclass", "reduce", "function", "class", "objects", "sparse", "numpy's slice",
                              "tensor's slice", "float's slice"])
def test_what_is_not_plain_is_refused_by_name_without_pickle(value):
    with pytest.raises(TypeError, match="allow_pickle=True.*runs the code of the writer") as error:
        serialize([1, {"deep": value}])
    assert type(value).__name__ in str(error.value)
    assert serialize([value], allow_pickle=True).dtype == torch.uint8


def test_a_pickle_is_never_read_unasked():
    Trap.fired = False
    whole = serialize([Trap(), torch.ones(3)], allow_pickle=True)
    with pytest.raises(ValueError, match="pickle.*runs the code of the writer"):
        deserialize(whole)
    assert not Trap.fired
    deserialize(whole, allow_pickle=True)
    assert Trap.fired


def test_pickled_objects_keep_tensors_as_views_and_references():
    point = Point(3, torch.arange(1000))
    whole = serialize([point, point, point.y], allow_pickle=True)
    one, two, tensor = deserialize(whole, allow_pickle=True)
    assert one is two and one.y is tensor and one.x == 3 and torch.equal(tensor, point.y)
    assert whole.data_ptr() <= tensor.data_ptr() < whole.data_ptr() + whole.numel()


def test_equal_objects_have_equal_bytes_and_the_value_stays():
    value = {"a": [1, torch.ones(3), "x"], "b": torch.zeros(2, 2)}
    before = copy.deepcopy(value)
    assert torch.equal(serialize(value), serialize(value))
    same(before, value, {})


def test_broken_bytes_are_errors_never_more():
    print("seed", SEED)
    rng = random.Random(SEED)
    value = {"a": [1, (2, "three" * 20), torch.arange(20), np.arange(3)], "b": {4, frozenset([5])},
             1: OrderedDict(x=b"y" * 50), "r": range(4)}
    value["loop"] = value
    value["records"] = [Pair(1, Pair("x" * 40)), Node(3, value), Node(4), {Pair(1, (2, Pair(3))): 5}]
    whole = serialize(value)
    refused = 0
    for _ in range(4000):
        bad = whole.clone()
        for _ in range(rng.randint(1, 4)):
            bad[rng.randrange(bad.numel())] = rng.randrange(256)
        if rng.random() < 0.3:
            bad = bad[:rng.randrange(bad.numel())]
        try:
            deserialize(bad)
        except ValueError:
            refused += 1
    assert refused > 1000
    for bad in (torch.zeros(0, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8)):
        with pytest.raises(ValueError):
            deserialize(bad)
    for bad in (b"bytes", torch.zeros(3), torch.zeros(2, 2, dtype=torch.uint8)):
        with pytest.raises(TypeError):
            deserialize(bad)


def test_a_dtype_that_numpy_would_read_as_an_expression_is_refused():
    whole = serialize(np.zeros(3, "<M8[25s]"))
    assert deserialize(whole).dtype == np.dtype("<M8[25s]")
    at = bytes(whole.numpy()).index(b"<M8[25s]")
    for name in (b"(1).x(s)", b"i4,i4,i2", b"<M8[25s(", b"{'a': 1}"):
        whole[at:at + 8] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        with pytest.raises(ValueError, match="dtype of numpy"):
            deserialize(whole)


def test_elements_without_bytes_are_refused_where_nothing_bounds_their_number():
    whole = serialize(np.zeros(0, "<U1"))
    at = bytes(whole.numpy()).index(b"<U1")
    whole[at + 2] = ord("0")
    assert deserialize(whole).shape == (0,)
    whole[at + 19:at + 27] = torch.tensor([1 << 40]).view(torch.uint8)
    with pytest.raises(ValueError, match="1099511627776 elements of <U0"):
        deserialize(whole)
    with pytest.raises(TypeError, match="numpy.ndarray is none of the plain types"):
        serialize(np.ndarray((3,), "<U0"))


def test_at_odd_addresses():
    whole = serialize([torch.arange(5, dtype=torch.float64), torch.tensor([1j])])
    shifted = torch.empty(whole.numel() + 1, dtype=torch.uint8)[1:].copy_(whole)
    numbers, other = deserialize(shifted)
    assert torch.equal(numbers, torch.arange(5, dtype=torch.float64)) and other[0] == 1j


def test_unknown_versions_are_reported():
    whole = serialize(1)
    whole[4] = 99
    with pytest.raises(ValueError, match="version 99"):
        shardwire.deserialize(whole)
