"""Sight into a running job: the status of the processes, the flight recorder and torch's tool for its files, the
profiler's ranges.
"""

import contextlib
import http.client
import importlib.util
import io
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import shardwire
from conftest import TORCH, raises
from ranks import await_file
from shardwire.status import __main__ as command
from shardwire.status import picture, processes, table, web

HAS_TOOL = importlib.util.find_spec("torch.distributed.flight_recorder") is not None if TORCH >= (2, 9) else False


@pytest.fixture
def runtime(monkeypatch):
    """A folder for the sockets, short enough for a socket's path; groups made meanwhile serve."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("SHARDWIRE_STATUS", "1")
        yield Path(folder)


def seen_until(is_there, within=20):
    """Takes pictures of all processes until is_there accepts one; returns this picture."""
    deadline = time.monotonic() + within
    while True:
        seen = picture.picture(processes.look(within=0.5), os.uname().nodename)
        if is_there(seen) or time.monotonic() > deadline:
            assert is_there(seen), json.dumps(seen, indent=1)
            return seen


def sentences(seen):
    return [sentence for group in seen["groups"] for sentence in group["sentences"]]


# ---- the status of a job


def test_a_rank_that_does_not_come_is_named_with_what_it_did_last(run_ranks, runtime, tmp_path):
    def body(rank, size):
        dist.all_gather([torch.zeros(3) for _ in range(size)], torch.ones(3))
        if rank == 1:
            await_file(tmp_path / "seen")
        work = dist.all_reduce(torch.ones(4), async_op=True)
        if rank == 0:
            wanted = (r"ranks 0, 2 wait in all_reduce #\d+ for rank 1, which is in no operation \(last: all_gather "
                      r"#\d+, [0-9.]+ m?s ago\)")
            seen = seen_until(lambda seen: any(re.fullmatch(wanted, sentence) for sentence in sentences(seen)))
            (group,) = seen["groups"]
            assert [each["state"] for each in group["ranks"]] == ["in", "idle", "in"]
            assert group["traffic"][0][1] == 12 and all(text.startswith("shm")
                                                        for text in group["ranks"][0]["transports"].values())
            check_commands(group)
            (tmp_path / "seen").touch()
        work.wait()

    run_ranks(3, body)
    assert {process.state for process in processes.look()} == {"dead"}  # these ranks end as if they were killed
    assert not list(runtime.glob("shardwire/*.sock"))  # and look() has removed the sockets of the dead ranks


def check_commands(group):
    """The output of `python -m shardwire.status`: in this process (to import torch anew takes seconds), and once as a
    program.
    """
    for words in (["--once"], ["--json"], ["--once", str(os.getpid())]):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert command.main(words) == 0
        if words == ["--json"]:
            assert [each["id"] for each in json.loads(out.getvalue())["groups"]] == [group["id"]]
        else:
            assert ("-> ranks 0, 2 wait" in out.getvalue()
                    or len(words) == 2 and "-> rank 0 waits in all_reduce" in out.getvalue()), out.getvalue()
    done = subprocess.run([sys.executable, "-m", "shardwire.status", "--once"], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0 and "-> ranks 0, 2 wait in all_reduce" in done.stdout, done.stdout + done.stderr


def test_a_stopped_and_a_dead_rank_are_shown_as_such(run_ranks, runtime, tmp_path):
    def body(rank, size):
        dist.barrier()
        if rank == 1:
            (tmp_path / "pid").write_text(str(os.getpid()))
            (tmp_path / "there").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        if rank == 2:
            await_file(tmp_path / "seen")
            raises(shardwire.PeerFailedError, lambda: dist.all_reduce(torch.ones(1)), contains="rank 1")
            dist.destroy_process_group()
            return
        await_file(tmp_path / "there")
        pid = int((tmp_path / "pid").read_text())
        work = dist.all_reduce(torch.ones(4), async_op=True)
        seen = seen_until(
            lambda seen: any("which is stopped" in s or "rank 1 is stopped" in s for s in sentences(seen)))
        assert any(f"rank 1 is stopped (pid {pid} got SIGSTOP" in sentence for sentence in sentences(seen)), sentences(
            seen)
        assert seen["groups"][0]["ranks"][1]["state"] == "stopped"
        assert "STOPPED" in table.plain(seen)
        os.kill(pid, signal.SIGKILL)
        raises(shardwire.PeerFailedError, work.wait, contains="rank 1")
        # Rank 0 may know of the failure before the process has ended: then the next look removes the socket.
        socket = runtime / "shardwire" / f"{pid}.sock"
        seen = seen_until(lambda seen: seen["groups"][0]["ranks"][1]["state"] == "dead" and not socket.exists())
        assert any("cannot use this group any more" in sentence and f"pid {pid}" in sentence
                   for sentence in sentences(seen)), sentences(seen)
        (tmp_path / "seen").touch()
        dist.destroy_process_group()

    run_ranks(3, body, may_die=(1,))


def test_a_process_without_the_variable_serves_when_asked(run_ranks, runtime, monkeypatch):
    monkeypatch.delenv("SHARDWIRE_STATUS")

    def body(rank, size):
        assert processes.look() == [] or rank == 1
        dist.barrier()
        if rank == 0:
            path = shardwire.status.serve()
            assert path == shardwire.status.serve() == str(runtime / "shardwire" / f"{os.getpid()}.sock")
            (process,) = processes.look()
            assert process.status["groups"][0]["rank"] == 0 == shardwire.status.snapshot()["groups"][0]["rank"]
            seen = picture.picture([process], os.uname().nodename)
            assert seen["groups"][0]["ranks"][1]["state"] == "unreported"
            shardwire.status.stop()
            assert processes.look() == []
        dist.barrier()

    run_ranks(2, body)


def status_of(rank, in_flight=(), latest=(), failure="", pid=None, size=3, global_ranks=None):
    peers = [{"rank": r, "host": "h", "pid": 100 + r, "gone": "", "transport": "shm", "sent_bytes": 5 * r,
              "received_bytes": r} for r in range(size)]
    group = {"id": "g", "name": "dp", "rank": rank, "world_size": size,
             "global_ranks": global_ranks or list(range(size)), "busy": False, "failure": failure, "sequence": 4,
             "timeout_s": 9, "age_s": 3, "recorded": True, "peers": peers, "in_flight": list(in_flight),
             "last_call": "barrier", "latest": list(latest)}
    return processes.Process(pid or 100 + rank, "answers",
                             {"version": 1, "pid": 100 + rank, "host": "h", "groups": [group]})


def test_sentences_for_every_state_of_the_awaited_rank():
    def wait(whom, name="all_reduce(float32[4], sum)", seq=17):
        return {"seq": seq, "operation": name, "seconds": 12.0, "timeout_s": 9, "waits_for": whom, "why": "w"}

    def sentences(*others, state="dead"):
        return picture.picture([status_of(0, [wait([1])]), *others], "h", lambda pid: state)["groups"][0]["sentences"]

    assert (sentences(status_of(2, [wait([1])]))
            == ["ranks 0, 2 wait in all_reduce #17 for rank 1, which is dead (pid 101 is gone)"])
    assert (sentences(status_of(1), status_of(2, [wait([1])]))
            == ["ranks 0, 2 wait in all_reduce #17 for rank 1, which is in no operation (last: barrier #4)"])
    assert sentences(status_of(1, [wait([2], "broadcast(int8[1], root 2)", 18)]), status_of(2)) == [
        "rank 0 waits in all_reduce #17 for rank 1, which is in broadcast #18 since 12 s and waits for rank 2",
        "rank 1 waits in broadcast #18 for rank 2, which is in no operation (last: barrier #4)"]
    assert "does not report (pid 101 runs without SHARDWIRE_STATUS=1)" in sentences(status_of(2), state="silent")[0]
    assert sentences(processes.Process(101, "stopped"), status_of(2))[0].endswith(
        "which is stopped (pid 101 got SIGSTOP, or a debugger holds it)")
    assert sentences(status_of(1, failure="rank 2 died"), status_of(2)) == [
        "rank 0 waits in all_reduce #17 for rank 1, which cannot use this group any more (rank 2 died)",
        "rank 1 cannot use this group any more: rank 2 died"]
    # A rank that waits for a rank which waits in the same call (in a tree, or in a later part of the call) is shown to
    # wait for the rank at the end of the chain.
    assert (sentences(status_of(1, [wait([2])]), status_of(2))
            == ["ranks 0, 1 wait in all_reduce #17 for rank 2, which is in no operation (last: barrier #4)"])
    assert sentences(status_of(1, [wait([0])]), status_of(2)) == [
        "rank 0 waits in all_reduce #17 for rank 1, which is in all_reduce #17 since 12 s and waits for rank 0",
        "rank 1 waits in all_reduce #17 for rank 0, which is in all_reduce #17 since 12 s and waits for rank 1"]
    both = picture.picture([status_of(0, [wait([1, 2])])], "h", lambda pid: "dead")["groups"][0]
    assert both["sentences"] == ["rank 0 waits in all_reduce #17 for ranks 1, 2: rank 1 is dead (pid 101 is gone); "
                                 "rank 2 is dead (pid 102 is gone)"]
    assert both["traffic"] == [[0, 5, 10], [1, 0, 0], [2, 0, 0]]  # rank 0 received the bytes that the dead ranks sent
    assert ([picture.label({"operation": text, "seq": 3})
             for text in ('a run of compile_op "my op (1)" (2 tensors, plan 00)', "barrier")]
            == ['compile_op "my op (1)" #3', "barrier #3"])


def test_the_culprits_are_those_at_the_end_of_the_waits():
    def found(*waits_for):
        waits = [{"seq": 17 + whom[1], "operation": "all_reduce", "seconds": 12.0, "timeout_s": 9, "waits_for": whom[0],
                  "why": "w"} if whom else None for whom in waits_for]
        return picture.picture([status_of(rank, [wait] if wait else [], size=4) for rank, wait in enumerate(waits)],
                               "h")["groups"][0]["culprits"]

    assert found(([1], 0), None, ([1], 0), ([1], 0)) == [1]
    assert found(([1], 0), ([2], 1), None, None) == [2]
    assert found(([1], 0), ([0], 1), ([0], 0), None) == [0, 1]  # each waits for the other
    assert found(([2, 3], 0), ([0], 0), None, None) == [2, 3]
    assert found(None, None, None, None) == []


def test_ranks_of_a_sub_group_have_their_number_in_the_job(monkeypatch):
    wait = {"seq": 2, "operation": "all_reduce", "seconds": 12.0, "timeout_s": 9, "waits_for": [1], "why": "w"}
    (group,) = (seen := picture.picture([status_of(0, [wait], size=2, global_ranks=[2, 5])], "h",
                                        lambda pid: "stopped"))["groups"]
    assert [rank["global_rank"] for rank in group["ranks"]] == group["global_ranks"] == [2, 5]
    assert group["sentences"] == ["rank 0 (global rank 2) waits in all_reduce #2 for rank 1 (global rank 5), which is "
                                  "stopped (pid 101 got SIGSTOP, or a debugger holds it)"]
    lines = table.plain(seen).splitlines()
    assert lines[0] == 'group "dp" of 2 ranks (global ranks 2, 5), made 3.0 s ago'
    assert ([line.split()[:3] for line in lines[1:4]]
            == [["rank", "global", "pid"], ["0", "2", "100"], ["1", "5", "101"]])


def test_nobody_there_is_said(runtime):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert command.main(["--once"]) == 1
    assert "SHARDWIRE_STATUS=1" in out.getvalue()


def test_the_page_is_served_to_who_knows_its_address_only():
    seen = picture.picture([status_of(0), status_of(1), status_of(2)], "h")
    with web.PageServer(0, lambda: seen) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            def get(path, **headers):
                connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

            assert server.server_address[0] == "127.0.0.1" and len(server.token) >= 32
            status, page = get(f"/{server.token}/")
            assert (status == 200 and "status.json" in page
                    and not re.search(r"(src|href)=\"?https?:|//cdn|@import", page))
            assert json.loads(get(f"/{server.token}/status.json")[1]) == json.loads(json.dumps(seen))
            for path in ("/", "/status.json", f"/{server.token}x/", f"/{server.token}/other", f"/{server.token}"):
                assert get(path)[0] == 404, path
            assert get(f"/{server.token}/status.json", Host="evil.example")[0] == 404
        finally:
            server.shutdown()
            thread.join()


def test_silent_connections_to_the_page_are_few_and_keep_nobody_out():
    with web.PageServer(0, lambda: {"groups": [], "processes": []}) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            before = threading.active_count()
            silent = [socket.create_connection(server.server_address, timeout=10)
                      for _ in range(4 * server.most_connections)]
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            connection.request("GET", f"/{server.token}/")
            assert connection.getresponse().status == 200
            assert silent[0].recv(1) == b""  # the oldest were ended
            deadline = time.monotonic() + 20
            while threading.active_count() > before + server.most_connections and time.monotonic() < deadline:
                time.sleep(0.01)  # the closed connections' threads are ending
            assert threading.active_count() <= before + server.most_connections
            assert web._Handler.timeout is not None  # and the silent connections' threads end soon
            for each in silent:
                each.close()
        finally:
            server.shutdown()
            thread.join()


def test_the_page_in_a_browser(tmp_path):
    """The output of its script for a picture: words of the job are inserted as text, never as HTML."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    evil = "<img src=x onerror=alert(1)>"
    wait = {"seq": 17, "operation": f"all_reduce({evil})", "seconds": 12.0, "timeout_s": 9, "waits_for": [1],
            "why": "w"}
    seen = picture.picture([status_of(0, [wait]), status_of(1), status_of(2)], "h")
    with web.PageServer(0, lambda: seen) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu",
                                   f"--user-data-dir={tmp_path}", "--virtual-time-budget=3000", "--dump-dom",
                                   server.url], capture_output=True, text=True, timeout=120, check=False)
        finally:
            server.shutdown()
            thread.join()
    assert done.returncode == 0, done.stderr
    # the legend
    assert "<p class=\"sentence\">rank 0 waits in all_reduce" in done.stdout and done.stdout.count("<rect ") == 9 + 5
    assert ("<tr class=\"in\"><td>0</td><td>100</td><td>h</td><td>in an operation</td>" in done.stdout
            and "<tr class=\"idle culprit\"><td>1</td>" in done.stdout)
    assert "<title>shardwire status</title>" in done.stdout and "<summary>transports</summary>" in done.stdout
    assert "all_reduce(&lt;img src=x onerror=alert(1)&gt;)" in done.stdout and "<img" not in done.stdout


def drawn_picture():
    def rank(number, state, **more):
        return {"rank": number, "global_rank": number, "pid": 100 + number, "host": "here", "state": state,
                "in_flight": [], "last": None, "transports": {}, **more}

    operation = {"operation": "all_reduce", "seq": 7, "seconds": 12.4, "waits_for": [2], "why": ""}
    ranks = [rank(0, "in", in_flight=[operation, operation],
                  transports={"1": "shm, rings", "2": "tcp (no other)", "3": "shm"}),
             rank(1, "idle", last={"operation": "barrier", "seq": 6, "seconds_ago": 3.0}), rank(2, "dead"),
             rank(3, "elsewhere", host="[there]")]
    return {"groups": [
        {"name": "[red]mine", "world_size": 4, "age_s": 70.0, "ranks": ranks, "global_ranks": [0, 1, 2, 3],
         "culprits": [1, 2],
         "sentences": ["rank 0 waits in all_reduce #7 for rank 2, which is dead [/] (pid 102 is gone)"]}],
            "processes": []}


def test_the_table_for_a_terminal_has_the_cells_of_the_plain_one_in_colours(monkeypatch):
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    found = table.rendered(drawn_picture(), 160)
    lines = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in found.splitlines()]
    cells = {line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[1:-1]] for line in lines
             if line.startswith("│")}
    assert cells == {"0": ["0", "100", "here", "all_reduce #7 and 1 more", "12 s", "2", "", "shm to 1, 3; tcp to 2"],
                     "1": ["1", "101", "here", "idle", "", "", "barrier #6, 3.0 s ago", ""],
                     "2": ["2", "102", "here", "DEAD", "", "", "", ""],
                     "3": ["3", "103", "[there]", "on another host", "", "", "", ""]}, found
    assert lines[0].strip() == 'group "[red]mine" of 4 ranks, made 70 s ago'
    assert lines[-1].strip() == "-> rank 0 waits in all_reduce #7 for rank 2, which is dead [/] (pid 102 is gone)"
    colours = {pid: set(re.findall("\x1b\\[(3[0-8])m", line)) for line in found.splitlines()
               for pid in ("100", "101", "102") if "│" in line and pid in line}
    assert colours == {"100": set(), "101": {"33"}, "102": {"31"}}, found
    nothing = {"groups": [], "processes": []}
    assert table.nothing(nothing) in " ".join(re.sub("\x1b\\[[0-9;]*m", "", table.rendered(nothing, 400)).split())
    assert max(map(
        len, (re.sub("\x1b\\[[0-9;]*m", "", line) for line in table.rendered(drawn_picture(), 60).splitlines()))) <= 60


def test_without_rich_the_table_for_a_terminal_is_the_plain_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert table.rendered(drawn_picture(), 160) == table.plain(drawn_picture())


# ---- the flight recorder


def test_the_trace_has_what_was_called(run_ranks):
    def body(rank, size):
        dist.all_reduce(torch.ones(2, 3))
        op = shardwire.compile_op(None, shape=[4], dtype=torch.float32, inputs=[{"offset": [2 * rank], "shape": [2]}],
                                  outputs=[{"offset": [0], "shape": [4]}], name="moves")
        op([torch.ones(2)], [torch.ones(4)]).wait()
        trace = shardwire.trace()
        sums = [entry for entry in trace["entries"] if entry["profiling_name"] == "nccl:all_reduce"]
        assert ([(entry["input_sizes"], entry["input_dtypes"], entry["state"]) for entry in sums]
                == [([[2, 3]], ["Float"], "completed")])
        assert (sums[0]["time_created_ns"] <= sums[0]["time_discovered_started_ns"]
                <= sums[0]["time_discovered_completed_ns"] <= time.time_ns())
        (run,) = [entry for entry in trace["entries"] if entry["operation"].startswith('a run of compile_op "moves"')]
        assert (run["profiling_name"] == "nccl:coalesced" and run["input_sizes"] == [[2]]
                and run["output_sizes"] == [[4]])
        assert shardwire.trace(only_active=True)["entries"] == []
        return [(entry["collective_seq_id"], entry["profiling_name"]) for entry in trace["entries"]]

    first, second = run_ranks(2, body)
    assert first == second


def test_no_recorder_where_it_is_switched_off(run_ranks, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")

    def body(rank, size):
        dist.barrier()
        assert shardwire.trace()["entries"] == []

    run_ranks(2, body)


def analysed(folder):
    """The report of torch's own tool on the files in the folder."""
    done = subprocess.run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "--prefix",
                           "trace_"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(not HAS_TOOL, reason="this torch has no flight_recorder tool")
@pytest.mark.parametrize("kind", ["stuck", "mismatch", "fine"])
def test_torchs_tool_reads_what_is_written_on_failure(run_ranks, monkeypatch, tmp_path, kind):
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))

    def body(rank, size):
        for _ in range(3):
            dist.all_reduce(torch.ones(5))
        request = dist.isend(torch.ones(2), 1 - rank)
        dist.recv(torch.ones(2), 1 - rank)
        request.wait()
        dist.all_gather([torch.zeros(3) for _ in range(size)], torch.ones(3))
        dist.all_to_all_single(torch.zeros(4), torch.ones(4))
        dist.broadcast(torch.ones(2), 1)
        if kind == "fine":
            (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(shardwire.trace()))
            return
        if kind == "mismatch":
            raises(shardwire.MismatchError, lambda: dist.all_reduce(torch.ones(6)) if rank == 0 else dist.all_gather(
                [torch.zeros(3) for _ in range(size)], torch.ones(3)))
        elif rank == 0:
            raises(shardwire.TimeoutError, lambda: dist.all_reduce(torch.ones(6)), contains="rank 1")
        else:
            # rank 0 reported its failure, and this rank wrote its trace, in a call or not
            await_file(tmp_path / "trace_1")
        dist.destroy_process_group()

    run_ranks(2, body, group_timeout=20 if kind != "stuck" else 1)
    words = analysed(tmp_path)
    if kind == "fine":
        assert "mismatch" not in words.lower() and "not all ranks" not in words.lower() and "errors" not in words, words
    elif kind == "mismatch":
        assert ("Culprit rank 1" in words
                and "'all_reduce' does not match found collective type: 'all_gather'" in words), words
    else:
        assert ("Not all ranks joining collective" in words and "missing ranks: {1}" in words
                and "input sizes: [[6]]" in words), words


@pytest.mark.skipif(TORCH < (2, 9), reason="this torch has no _dump_fr_trace")
def test_torchs_own_dump_has_our_operations_beside_its_own(run_ranks, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")  # torch 2.9 records nothing of gloo otherwise

    def body(rank, size):
        from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
        gloo = dist.new_group(list(range(size)), backend="gloo")
        dist.all_reduce(torch.ones(3), group=gloo)
        dist.all_reduce(torch.ones(4))
        whole = pickle.loads(_dump_fr_trace())
        by_backend = {entry.get("backend", "gloo"): entry["input_sizes"] for entry in whole["entries"]
                      if entry["profiling_name"] in ("gloo:all_reduce", "nccl:all_reduce")}
        assert by_backend == {"gloo": [[3]], "shardwire": [[4]]}, whole
        numbers = [entry["record_id"] for entry in whole["entries"]]
        assert len(set(numbers)) == len(numbers)
        assert {entry["process_group"][0] for entry in whole["entries"] if "backend" in entry} <= set(
            whole["pg_config"])
        assert len(json.loads(_dump_fr_trace_json())["entries"]) == len(whole["entries"])
        assert not any(entry.get("backend") == "shardwire"
                       for entry in pickle.loads(_dump_fr_trace(onlyActive=True)).get("entries", []))
        assert "entries" not in pickle.loads(_dump_fr_trace(includeCollectives=False))

    run_ranks(2, body)


# ---- the profiler


def test_ranges_have_the_users_names_and_last_until_the_end(run_ranks, tmp_path):
    def body(rank, size):
        spec = {"shape": [4], "dtype": torch.float32, "inputs": [{"offset": [2 * rank], "shape": [2]}],
                "outputs": [{"offset": [0], "shape": [4]}]}
        op = shardwire.compile_op(None, name="weights", **spec)
        mine, got = torch.ones(2), torch.empty(4)
        bound = op.bind([mine], [got])
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            shardwire.compile_op(None, name="weights", **spec)
            for start in (lambda: op([mine], [got]), bound, lambda: dist.all_reduce(got, async_op=True)):
                if rank == 1:
                    await_file(tmp_path / "go")
                future = start()
                began = time.perf_counter()
                if rank == 0:
                    sum(range(200000))  # some time in which the operation cannot end
                    held = time.perf_counter() - began
                    (tmp_path / "go").touch()
                future.wait()
                dist.barrier()
                if rank == 0:
                    (tmp_path / "go").unlink()
                    last = held
                dist.barrier()
        events = {event.name: event for event in profile.events() if event.name.startswith("shardwire:")}
        assert "shardwire:compile_op weights" in events, sorted(events)
        assert events["shardwire:compiled_op weights"].input_shapes == [[2]]
        assert len([event for event in profile.events() if event.name == "shardwire:compiled_op weights"]) == 2
        if rank == 0:
            shown = events["shardwire:all_reduce"]
            assert shown.time_range.elapsed_us() >= last * 1e6, (shown.time_range.elapsed_us(), last * 1e6)

    run_ranks(2, body)


# ---- the page of docs


def test_the_examples_of_the_page_run(tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs" / "sight.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    assert len(examples) == 2
    for code in examples:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
