"""Kernels by NKIPy's names: DeviceTensor, load_from_file, calls with dicts, BenchmarkResult, CompiledKernel."""

from __future__ import annotations

import contextlib
import json
import os

import numpy as np
import pytest
import torch

import shardwire
from shardwire.kernels import BenchmarkResult, CompiledKernel, DeviceKernel, DeviceTensor


def mix(a, b):
    return torch.relu(a @ b) + 1, a.sum(0)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    a = DeviceTensor.from_numpy(np.zeros((3, 4), np.float32))
    return DeviceKernel.compile_and_load(mix, a, b=np.zeros((4, 2), np.float32), is_spmd=False,
                                         build_dir=tmp_path_factory.mktemp("kernels"))


def values():
    return torch.arange(12.0).view(3, 4), torch.ones(4, 2)


def test_a_device_tensor_copies():
    source = torch.arange(6).view(2, 3)
    made = DeviceTensor.from_torch(source.t(), name="x", core_id=1)
    source.zero_()
    assert made.shape == (3, 2) and made.dtype == np.int64 and made.name == "x"
    assert made.torch().tolist() == made.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    made.torch().zero_()
    made.numpy()[:] = 0
    assert made.torch()[2, 1] == 5
    made.write_from_numpy(np.arange(6)[::-1])
    assert made.numpy().tolist() == [[5, 4], [3, 2], [1, 0]]
    made.write_from_torch(torch.zeros(6, dtype=torch.int64))
    assert made.numpy().sum() == 0
    with pytest.raises(ValueError, match="24 bytes, this tensor 48"):
        made.write_from_torch(torch.zeros(6))
    half = DeviceTensor.from_torch(torch.ones(2, dtype=torch.bfloat16))
    assert half.torch().dtype == torch.bfloat16 and "shape=(2,)" in repr(half)
    scalar = DeviceTensor.from_numpy(np.array(3.5))
    assert scalar.shape == () and scalar.numpy() == 3.5
    store = torch.zeros(16, dtype=torch.uint8)
    shared = DeviceTensor(tensor_ref=store, shape=3, dtype="int32", name=None)
    shared.write_from_numpy(np.array([1, 2, 3], np.int32))
    assert store.view(torch.int32).tolist() == [1, 2, 3, 0] and shared.shape == (3,)
    with pytest.raises(ValueError, match="takes 32"):
        DeviceTensor(store, (4,), torch.float64)


def test_calls_with_dicts_of_device_tensors(kernel, tmp_path):
    a, b = values()
    inputs = {"a": DeviceTensor.from_torch(a), "b": DeviceTensor.from_torch(b)}
    # Old torches have no default device
    with torch.device("meta") if hasattr(torch.device, "__enter__") else contextlib.nullcontext():
        outputs = {each.name: each for each in kernel.allocate_output_tensors()}
    assert {name: (each.shape, each.numpy().sum()) for name, each in outputs.items()} == {
        "output0": ((3, 2), 0), "output1": ((4,), 0)}
    kernel(inputs, outputs)
    expected = [each.tolist() for each in mix(a, b)]
    assert [outputs[name].torch().tolist() for name in ("output0", "output1")] == expected
    made = kernel(inputs=inputs)  # without outputs: new ones by name
    assert [made[name].numpy().tolist() for name in ("output0", "output1")] == expected
    assert [each.tolist() for each in kernel({"a": a.numpy(), "b": b})] == expected  # tensors come back as tensors
    trace = tmp_path / "run.json"
    kernel(inputs, outputs, True, str(trace))
    events = json.loads(trace.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events  # torch 1.13 writes the list alone
    assert any(event.get("ph") == "X" for event in events)
    with pytest.raises(ValueError, match="lacks 'b'"):
        kernel({"a": inputs["a"]})


def test_a_file_is_loaded_without_a_compiler(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr("shardwire.kernels.device_kernel.compile_here", None)
    a, b = values()
    loaded = DeviceKernel.load_from_file(kernel.path, "again", 0, False, rank_id=1, world_size=2)
    assert (loaded.name, loaded.origin, loaded.key, loaded.rank_id, loaded.world_size, loaded.cc_enabled) == (
        "again", "disk", kernel.key, 1, 2, False)
    assert [each.tolist() for each in loaded(a, b)] == [each.tolist() for each in mix(a, b)]
    found = CompiledKernel(traced_kernel=mix, compiled_artifact=os.path.relpath(kernel.path))
    assert found.traced_kernel is mix and found.compiled_artifact == kernel.path and found.ir.key == kernel.key
    assert [form.name for form in found.ir.inputs] == ["a", "b"]
    for call in (DeviceKernel.load_from_file, lambda path: CompiledKernel(mix, path)):
        with pytest.raises(FileNotFoundError, match="no compiled kernel"):
            call(tmp_path / "missing")
    broken = tmp_path / "broken.swkn"
    broken.write_bytes(b"SWKN" + bytes(60))
    os.chmod(broken, 0o600)
    with pytest.raises(shardwire.KernelError, match="broken.swkn"):
        DeviceKernel.load_from_file(broken)


def test_a_kernel_that_communicates_needs_leave(kernel, monkeypatch):
    from shardwire.kernels import device_kernel
    read = device_kernel.read_file(kernel.path)
    read.groups = ["0"]
    monkeypatch.setattr(device_kernel, "read_file", lambda path: read)
    with pytest.raises(ValueError, match="communicates; give cc_enabled=True"):
        DeviceKernel.load_from_file(kernel.path)
    assert DeviceKernel.load_from_file(kernel.path, cc_enabled=True).cc_enabled


def test_benchmarks_report_milliseconds(kernel):
    a, b = values()
    outputs = {"output0": torch.zeros(3, 2), "output1": torch.zeros(4)}
    times = kernel.benchmark({"a": a, "b": b}, outputs, 1, 4, "host")
    assert isinstance(times, BenchmarkResult) and (times.iterations, times.warmup_iterations) == (4, 1)
    assert outputs["output1"].tolist() == a.sum(0).tolist()
    assert times.durations_ms == [value * 1e3 for value in times.seconds]
    assert times.min_ms <= times.mean_ms <= times.max_ms and times.std_dev_ms >= 0
    assert kernel.benchmark(inputs={"a": a, "b": b}, benchmark_iter=2, warmup_iter=0, mode="device").iterations == 2
    assert BenchmarkResult(1.0, 0.5, 2.0, 0.1, 3, 1).durations_ms == []


def test_the_forms_of_a_kernel_by_nkipys_names(kernel):
    assert str(kernel.neff_path) == kernel.path and kernel.neff_path.exists()
    assert list(kernel.input_tensors_info) == ["a", "b"] and list(kernel.output_tensors_info) == ["output0", "output1"]
    info = kernel.output_tensors_info["output0"]
    assert (info.size, info.dtype, info.shape) == (24, "float32", [3, 2])


def test_a_benchmark_of_nkipys_form_has_nkipys_defaults(kernel):
    a, b = values()
    outputs = {"output0": torch.zeros(3, 2), "output1": torch.zeros(4)}
    for times in (kernel.benchmark({"a": a, "b": b}, outputs), kernel.benchmark(inputs={"a": a, "b": b})):
        assert (times.warmup_iterations, times.iterations, times.mode) == (5, 5, "device")
    assert outputs["output1"].tolist() == a.sum(0).tolist()
    for times in (kernel.benchmark(a, b, iterations=7), kernel.benchmark(inputs={"a": a, "b": b}, iterations=7)):
        assert (times.warmup_iterations, times.iterations, times.mode) == (10, 7, "host")
    assert (times := kernel.benchmark({"a": a, "b": b}, mode="host", warmup_iter=1)).mode == "host"
    assert (times.warmup_iterations, times.iterations) == (1, 5)
    with pytest.raises(ValueError, match="outputs lacks 'output1'"):
        kernel.benchmark({"a": a, "b": b}, {"output0": outputs["output0"]})


def test_examples_by_keyword_alone(tmp_path):
    def keyword_only(a, *, b):
        return a + b
    with pytest.raises(TypeError, match="by keyword only"):
        DeviceKernel.compile_and_load(keyword_only, torch.ones(2), b=torch.ones(2), build_dir=tmp_path)
    with pytest.raises(TypeError, match="cannot be called with c"):
        DeviceKernel.compile_and_load(mix, torch.ones(2), c=torch.ones(2), build_dir=tmp_path)
