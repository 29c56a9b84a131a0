"""Every Python example of README.md and docs/ runs unchanged: every example
marked "run", found by tests/checks/docs.py, and the examples below by the real launcher."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import pathlib
import re
import sys

import pytest
import torch
from ranks import run_ranks
from run_program import run_program

import shardwire
from shardwire.launch import free_port
from shardwire.offline.description import plan_description

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "checks"))
import docs  # noqa: E402: the module lies beside the checks

EXAMPLES = [example for example, _, _ in docs.examples(ROOT) if example is not None]
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


# The output of each example.
SAYS = {
    # Exactly 12 of the 16 pieces cross ranks.
    "docs/quickstart.md": "between ranks: 12.6 MB; the least possible: 12.6 MB",
}


def as_a_launcher_starts_it(rank: int, example: docs.Example, size: int, port: int, folder: str, *words: str) -> str:
    """The output of an example, run in a fork with torch imported: new interpreters would take most of the time."""
    sys.argv[1:] = words
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="localhost",
                      MASTER_PORT=str(port), USE_LIBUV="0")
    os.chdir(folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.code, f"{example.page}, the example of line {example.line}", "exec"),
             {"__name__": "__main__"})
    return printed.getvalue()


def imports(code: str) -> list[str]:
    """The modules in the import statements of a program."""
    nodes = list(ast.walk(ast.parse(code)))
    return ([node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
            + [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names])


@pytest.mark.parametrize(("example", "size"), [pytest.param(example, size, id=f"{example.page}:{example.line}-{size}")
                                               for example in EXAMPLES for size in example.sizes])
def test_an_example_runs(example: docs.Example, size: int, tmp_path: pathlib.Path) -> None:
    if example.torch and TORCH < tuple(int(part) for part in example.torch.split(".")):
        pytest.skip(f"this example needs torch {example.torch}")
    modules = imports(example.code)
    if "torch.distributed._symmetric_memory" in modules and not shardwire._C.has_torch_symmetric_memory:
        pytest.skip("shardwire was not compiled against this torch's symmetric memory")
    for module in modules:
        importlib.import_module(module)  # once, before the forks
    said = run_ranks(size, as_a_launcher_starts_it, example, size, free_port(), str(tmp_path), join=False)
    if "explain()" in example.code:
        assert SAYS.get(example.page, "") in said[0], said[0]


@pytest.mark.any_torch
def test_the_readme_example_runs_as_a_newcomer_starts_it(tmp_path: pathlib.Path) -> None:
    (example,) = [each for each in EXAMPLES if each.page == "README.md"]
    assert len(example.code.strip().splitlines()) <= 25
    assert "`./run python -m shardwire.launch -n 4 loop.py`" in (ROOT / "README.md").read_text()
    (tmp_path / "loop.py").write_text(example.code)
    command = [sys.executable, "-m", "shardwire.launch", "-n", "4", str(tmp_path / "loop.py")]
    done = run_program(command)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = (ROOT / "README.md").read_text().partition("The program prints the following, and then")[2].partition(
        "```\n")[2].partition("```")[0]
    assert len(shown) > 200 and re.sub("in [0-9.]+ ms", "in T ms", done.stdout).startswith(
        re.sub("in [0-9.]+ ms", "in T ms", shown)), done.stdout
    # Each trainer gives each server exactly a quarter of the weight.
    assert "between ranks: 16.8 MB; the least possible: 16.8 MB" in done.stdout, done.stdout


def test_the_two_jobs_of_publish_meet(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/publish.md's trainer.py and server.py, by the commands of the page: two ranks and one, with one token."""
    page = (ROOT / "docs" / "publish.md").read_text()
    trainer, server = (each for each in EXAMPLES if each.page == "docs/publish.md" and each.how == "run by")
    assert ("launch -n 2 trainer.py tcp://localhost:29600" in page
            and "launch -n 1 server.py tcp://localhost:29600" in page)
    monkeypatch.setenv("SHARDWIRE_JOB_TOKEN", "secret of both")
    url, ports = f"tcp://localhost:{free_port()}", [free_port(), free_port()]

    def job(rank: int) -> str:
        started = (rank, trainer, 2, ports[0]) if rank < 2 else (0, server, 1, ports[1])
        return as_a_launcher_starts_it(*started, str(tmp_path), url)

    said = run_ranks(3, job, join=False)
    assert said[2].splitlines()[-1] == "serves version 10", said


def test_the_first_example_of_survive_goes_on_after_the_death(tmp_path: pathlib.Path) -> None:
    """The first program of docs/survive.md, by the command of the page."""
    example = next(each for each in EXAMPLES if each.page == "docs/survive.md")
    assert "launch -n 3 --survive survive.py" in (ROOT / "docs" / "survive.md").read_text()
    (tmp_path / "survive.py").write_text(example.code)
    done = run_program([sys.executable, "-m", "shardwire.launch", "-n", "3", "--survive", str(tmp_path / "survive.py")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rank 1 (pid") >= 2, done.stdout + done.stderr  # the errors of ranks 0 and 2


def test_the_examples_of_the_pages_are_found() -> None:
    """The pages from the time when the collector was written are still found."""
    found = {example.page for example in EXAMPLES if example.sizes}
    assert {"docs/move-weights.md", "docs/queue.md", "docs/symmetric.md", "docs/weights.md"} <= found, found


@pytest.mark.parametrize("example", [pytest.param(example, id=f"{example.page}:{example.line}") for example in EXAMPLES
                                     if example.how == "excerpt of"])
def test_an_excerpt_names_what_is_there(example: docs.Example) -> None:
    assert all(hasattr(shardwire, name) for name in re.findall(r"\bshardwire\.(?!adapters)(\w+)", example.code))


def test_the_picture_is_what_the_plan_draws(tmp_path: pathlib.Path) -> None:
    """docs/pictures/move-weights.svg; docs/move-weights.md shows how to draw the picture again."""
    plan_description(json.loads((ROOT / "docs/pictures/move-weights.json").read_text())).plot(tmp_path / "again.svg")
    assert (ROOT / "docs/pictures/move-weights.svg").read_text() == (tmp_path / "again.svg").read_text()
