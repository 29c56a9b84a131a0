"""The modules that `import shardwire` loads, and the modules that load on first use."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import subprocess
import sys

import shardwire

# The backend and its needs. A new module here makes every rank of every job wait at its start.
LOADED = {"shardwire", "shardwire_autoload", *(f"shardwire.{name}" for name in (
    "_C", "_build_info", "_glue", "errors", "groups", "groups.lookup", "groups.timeouts", "groups.torch_backend",
    "process", "process.ending", "process.log", "process.trace"))}
# The rest of the trunk, by the first compile_op.
COMPILER = {"shardwire.compiler", *(f"shardwire.compiler.{name}" for name in (
    "all_ranks", "compile_op", "fused", "future", "layout", "other_order", "spec", "who_plans"))}
FEATURES = ("adapters", "distributed", "kernels", "nvshmem", "offline", "queues", "status", "symm", "weights")
LOADED_BY_OTHERS = ("symm",)  # nvshmem is built on symm


def run(code: str) -> str:
    """Without torch's own import of an installed shardwire."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120,
                          env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout


def modules_after(code: str) -> set[str]:
    """The modules that ``code`` loads beside the modules of torch."""
    return set(json.loads(run("import json, sys, torch\nbefore = "
                              f"set(sys.modules)\n{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))")))


def test_importing_loads_the_backend_and_no_module_of_another_package():
    assert modules_after("import shardwire") == LOADED


def test_a_job_of_collectives_and_compiled_ops_loads_no_feature():
    loaded = modules_after("import shardwire, torch.distributed as dist\n"
                           "dist.init_process_group('shardwire', store=dist.HashStore(), rank=0, world_size=1)\n"
                           "dist.all_reduce(torch.ones(4))\nshardwire.compile_op(None, [4], torch.float32, [], "
                           "[])\ndist.destroy_process_group()")
    assert {name for name in loaded if name.startswith("shardwire")} == (LOADED | COMPILER
                                                                                 | {"shardwire.groups.create"})


def test_every_public_name_is_there_by_attribute_and_in_dir():
    assert json.loads(run("import json, shardwire\nlisted = dir(shardwire)\n"
                          "print(json.dumps([[name for name in shardwire.__all__ if name not in listed], [name for "
                          "name in shardwire.__all__ if not hasattr(shardwire, name)],hasattr(shardwire, "
                          "'no_such_name')]))")) == [[], [], False]
    assert "compute_shards(" in run("import pydoc, shardwire\nprint(pydoc.plain(pydoc.render_doc(shardwire)))")


def test_features_load_by_attribute():
    code = "import shardwire\n" + "".join(
        f"assert 'shardwire.{name}' not in sys.modules or {name in LOADED_BY_OTHERS}\nshardwire.{name}.__name__\n"
        for name in FEATURES)
    assert modules_after(code) > {f"shardwire.{name}" for name in FEATURES}


def test_a_queue_is_read_where_queues_were_not_loaded():
    address = "[b'Q', 'g', '0', 'n', None, 0]"
    assert run("import shardwire\nfrom shardwire.plain import write\nfrom shardwire.plain.handles import "
               "register_handle, Handle\n"
               "class Stand: pass\n"
               f"register_handle(Stand, Handle(b'Q', 5, lambda value: {address}[1:], None))\nhead, parts = "
               "write.write(Stand())\n"
               "from shardwire.plain import handles\nhandles._by_class.clear()\n"
               "import sys; assert 'shardwire.queues' not in sys.modules\n"
               "from shardwire.plain import read\nprint(type(read.read(head, parts)) is shardwire.Queue)") == "True\n"


def test_what_type_checkers_read_is_what_is_loaded_on_first_use():
    tree = ast.parse(pathlib.Path(shardwire.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    (features, *others) = (node for node in block.body if isinstance(node, ast.ImportFrom))
    assert sorted(alias.name for alias in features.names) == sorted(shardwire._FEATURES) == sorted(FEATURES)
    assert {alias.name: node.module for node in others for alias in node.names} == shardwire._MODULE_OF
