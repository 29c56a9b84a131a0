"""The cache of kernels: the bound in memory, and files that are corrupt, foreign, half written, raced for, or cannot be
written. No test compiles.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
import warnings

import pytest
from ranks import killed_in_the_middle

import shardwire
from shardwire.kernels import cache
from shardwire.kernels.tensor_forms import TensorForm
from shardwire.kernels.package import Broken, Package, decode

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "1"))


def package_of(key="k" * 40, code=b"code" * 1000):
    form = TensorForm("a", (2, 3), "torch.float32", "cpu", (3, 1))
    return Package(key, "kernel", "aotinductor", [form], [form], "tensor", [0], ["WORLD"], ["WORLD/1"], code)


@pytest.fixture(autouse=True)
def empty_memory():
    shardwire.clear_kernel_cache()
    yield
    shardwire.clear_kernel_cache()


def found_on_disk(folder, key):
    """The kernel on disk, without the cache in memory."""
    shardwire.clear_kernel_cache()
    return cache.find(str(folder), key)


def test_a_package_is_what_it_was():
    for code in (b"", b"x", bytes(range(256)) * 40):
        package = package_of(code=code)
        assert decode(package.encode()) == package


def test_anything_else_is_broken():
    print("seed", SEED)
    chance = random.Random(SEED)
    whole = package_of().encode()
    damaged = [whole[:length] for length in range(0, len(whole), 97)] + [whole + b"x", b"", b"SWKN"]
    for _ in range(300):
        bytes_of = bytearray(whole)
        bytes_of[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(bytes_of))
    for data in damaged:
        with pytest.raises(Broken):
            decode(data)


def test_memory_has_a_bound_and_the_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setattr(cache, "MEMORY_ENTRIES", 3)
    for key in "abc":
        cache.remember(package_of(key))
    assert cache.find("/nowhere", "a")[1] == "memory"
    cache.remember(package_of("d"))
    assert list(cache._kept) == ["c", "a", "d"]
    monkeypatch.setattr(cache, "MEMORY_BYTES", 10000)
    cache.remember(package_of("e", b"x" * 6000))
    assert list(cache._kept) == ["d", "e"]
    cache.remember(package_of("f", b"x" * 10001))
    assert list(cache._kept) == ["d", "e"]  # larger than all the room


def test_a_file_is_found_again_and_kept_in_memory(tmp_path):
    cache.store(str(tmp_path / "deep" / "er"), package_of())
    assert found_on_disk(tmp_path / "deep" / "er", "k" * 40) == (package_of(), "disk")
    assert cache.find("/nowhere", "k" * 40)[1] == "memory"
    assert [entry.name for entry in (tmp_path / "deep" / "er").iterdir()] == ["k" * 40 + ".swkn"]


def spoil_cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def spoil_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def spoil_other_key(path):
    path.write_bytes(package_of("o" * 40).encode())


def spoil_schema(path):
    data = bytearray(path.read_bytes())
    data[4] += 1
    path.write_bytes(data)


def spoil_folder(path):
    path.unlink()
    path.mkdir()


def spoil_pipe(path):
    path.unlink()
    os.mkfifo(path)


def spoil_dangling(path):
    path.unlink()
    path.symlink_to("nowhere")


SPOILT = {
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b"PK\x03\x04 something else" * 99), "cut": spoil_cut,
    "one bit": spoil_byte, "another kernel": spoil_other_key, "another schema": spoil_schema, "a folder": spoil_folder,
    "a pipe": spoil_pipe, "a dangling link": spoil_dangling, "others may write": lambda path: path.chmod(0o666),
    "another user's": lambda path: os.chown(path, 12345, -1),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_file_that_is_not_ours_or_not_whole_is_a_miss_and_is_replaced(tmp_path, how):
    if how == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    cache.store(str(tmp_path), package_of())
    (path,) = tmp_path.iterdir()
    SPOILT[how](path)
    assert found_on_disk(tmp_path, "k" * 40) is None
    assert not cache.has_file(str(tmp_path), "k" * 40), "a rank that receives the package writes the file"
    if how == "a folder":  # a rename cannot replace a folder: a warning, not an error
        with pytest.warns(RuntimeWarning, match="could not be kept"):
            cache.store(str(tmp_path), package_of())
        return
    cache.store(str(tmp_path), package_of())
    assert found_on_disk(tmp_path, "k" * 40) == (package_of(), "disk") and cache.has_file(str(tmp_path), "k" * 40)


def test_a_folder_that_cannot_be_written_is_reported_and_not_fatal(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "folder", "/proc/shardwire"):
        with pytest.warns(RuntimeWarning, match="was compiled but could not be kept in .*: .*set SHARDWIRE_KERNEL_DIR"):
            cache.store(str(folder), package_of())
        assert found_on_disk(folder, "k" * 40) is None


def full_disk(rank, size, folder):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # each file ends there, as on a full disk
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.store(str(folder), package_of(code=os.urandom(10000)))
    return [str(warning.message) for warning in caught], os.listdir(folder)


def test_a_full_disk_is_reported_and_leaves_no_file(run_ranks, tmp_path):
    ((caught, files),) = run_ranks(1, full_disk, tmp_path, init=False)
    assert len(caught) == 1 and "could not be kept" in caught[0] and "File too large" in caught[0] and files == []


def test_a_writer_that_is_killed_leaves_a_whole_file_or_none(tmp_path):
    print("seed", SEED)
    chance = random.Random(SEED)
    for _ in range(12):
        killed_in_the_middle(cache.store, str(tmp_path), package_of(code=os.urandom(1 << 20)),
                             after=chance.random() * 0.02)
        path = tmp_path / ("k" * 40 + ".swkn")
        if path.exists():
            assert decode(path.read_bytes()).key == "k" * 40
            assert found_on_disk(tmp_path, "k" * 40) is not None
    abandoned = tmp_path / "x.swkn.1.0.tmp"
    abandoned.write_bytes(b"half")
    fresh = tmp_path / "y.swkn.1.0.tmp"
    fresh.write_bytes(b"half")
    os.utime(abandoned, (time.time() - 7200, time.time() - 7200))
    cache.store(str(tmp_path), package_of())
    assert found_on_disk(tmp_path, "k" * 40) is not None
    assert not abandoned.exists() and fresh.exists()


def race(rank, size, folder):
    chance = random.Random(SEED + rank)
    mine = [package_of(f"{key:040d}", b"%d" % key * 20000) for key in range(4)]
    for _ in range(25):
        package = chance.choice(mine)
        found = found_on_disk(folder, package.key)
        assert found is None or found[0] == package
        if found is None or chance.random() < 0.5:
            cache.store(str(folder), package)
        assert found_on_disk(folder, package.key)[0] == package
    return True


def test_16_processes_race_for_the_same_files(run_ranks, tmp_path):
    assert run_ranks(16, race, tmp_path, init=False) == [True] * 16
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [f"{key:040d}.swkn" for key in range(4)]
