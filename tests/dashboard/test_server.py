"""What the server tells and what it refuses: updates as they happen, and nothing to strangers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from logged_runs import episode, write_run
from processes import Client, Process, Training, file_bytes, wait_until

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")

from rekindle import RunReader, TrainingRun
from rekindle.storage.logs import JsonLines
from rekindle.ui import dashboard

Serve = Callable[[Path], Client]
ServeProcess = Callable[..., Process]
Train = Callable[..., Training]

STATIC = Path(dashboard.__file__).parent / "static"


class Table:
    """What a browser holds of a log, built from messages as the pages do."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.returns: list[float] = []
        self.messages = 0

    def take(self, message: Any) -> None:
        self.rows = self.rows[: message["keep"]] + message["rows"]
        mean = message["mean"].get("return", [])
        self.returns = self.returns[: message["keep"]] + mean
        self.messages += 1


def of_log(messages: Any, log: str = "train_episodes") -> Any:
    return (message for message in messages if message["kind"] == "log" and message["log"] == log)


def test_the_list_is_sent_and_then_what_changes(tmp_path: Path, serve: Serve) -> None:
    write_run(tmp_path, "old")
    server = serve(tmp_path)
    with server.events("/api/list") as events:
        first = next(events)
        assert ([row["name"] for row in first["runs"]], first["gone"], first["count"]) == (["old"], [], 1)
        path = write_run(tmp_path, "new")
        assert [row["name"] for row in next(events)["runs"]] == ["new"]
        shutil.rmtree(path)
        assert next(events)["gone"] == [path.relative_to(tmp_path).as_posix()]


def test_rows_are_pushed_as_they_are_appended_and_taken_back_as_they_are_cut(tmp_path: Path, serve: Serve) -> None:
    run = TrainingRun.create("lake", root=tmp_path)
    log = run.log("train_episodes")
    for number in range(30):
        log.append(episode(number))
    position, expected = log.position, list(range(30))
    server = serve(tmp_path)
    table = Table()
    with server.events("/api/watch", id=run.path.relative_to(tmp_path).as_posix()) as events:
        messages = of_log(events)
        table.take(next(messages))
        assert table.returns == expected
        for number in range(30, 40):
            log.append(episode(number))
        while len(table.returns) < 40:
            message = next(messages)
            assert message["keep"] >= len(table.returns) - 1
            table.take(message)
        assert table.returns == list(range(40))
        os.truncate(log.path, position.size)
        again = JsonLines(log.path, position)
        again.append(episode(30, reward=-7.0, wall_time=1.0))
        table.take(next(messages))
        while len(table.returns) != 31:
            table.take(next(messages))
        assert table.returns == [*expected, -7.0]
        again.close()
    run.close()


def test_a_long_log_is_sent_in_few_points_with_its_extremes(tmp_path: Path, serve: Serve) -> None:
    path = write_run(tmp_path, episodes=3000, reward=lambda number: 1e6 if number == 1717 else number % 7)
    server = serve(tmp_path)
    with server.events("/api/watch", id=path.relative_to(tmp_path).as_posix(), points=100) as events:
        message = next(of_log(events))
    assert message["total"] == 3000
    assert 80 <= len(message["rows"]) <= 101
    assert (max(message["most"]["return"]), min(message["least"]["return"])) == (1e6, 0.0)
    id_ = path.relative_to(tmp_path).as_posix()
    detail = server.json("/api/detail", id=id_, by="step", **{"from": 17_150, "to": 17_200}, points=100)
    train = next(part for part in detail if part["log"] == "train_episodes")
    assert 1e6 in train["mean"]["return"]
    assert len(train["rows"]) < 10


def test_what_a_run_is_comes_with_its_curves(tmp_path: Path, serve: Serve) -> None:
    path = write_run(tmp_path, config={"env": {"id": "CartPole-v1"}, "rate": 0.1}, seed=3)
    write_run(tmp_path)
    server = serve(tmp_path)
    with server.events("/api/watch", id=path.relative_to(tmp_path).as_posix()) as events:
        details = next(events)
    assert details["kind"] == "run"
    assert details["settings"] == {"env.id": "CartPole-v1", "rate": "0.1"}
    assert details["metadata"]["seed"] == 3
    assert len(details["siblings"]) == 2
    assert (details["warnings"], details["is_stopping"]) == ([], False)


def test_a_failed_run_of_a_trainer_comes_with_the_command_that_diagnoses_it(tmp_path: Path, serve: Serve) -> None:
    path = write_run(tmp_path, status="failed")
    metadata = json.loads((path / "metadata.json").read_text())
    (path / "metadata.json").write_text(json.dumps({**metadata, "stop_reason": "the loss is NaN", "training": {}}))
    with serve(tmp_path).events("/api/watch", id=path.relative_to(tmp_path).as_posix()) as events:
        texts = [warning["text"] for warning in next(events)["warnings"]]
    assert texts == ["Failed: the loss is NaN", f"Find out why: rekindle diagnose {path}"]


def forked(root: Path, parent: Path, name: str, **changes: Any) -> Path:
    """A run that says that it is a fork of another."""
    path = write_run(root, name)
    metadata = json.loads((path / "metadata.json").read_text())
    place = "/".join(parent.parts[-3:])
    fork = {
        "run": place,
        "path": str(parent),
        "step": 100,
        "changes": {key: [0.1, new] for key, new in changes.items()},
    }
    (path / "metadata.json").write_text(json.dumps({**metadata, "parent": f"{parent}@100", "fork": fork}))
    return path


def test_a_run_comes_with_the_family_of_its_forks(tmp_path: Path, serve: Serve) -> None:
    first = write_run(tmp_path, "first")
    second = forked(tmp_path, first, "second", **{"agent.rate": 0.5})
    third, other = forked(tmp_path, second, "third"), forked(tmp_path, first, "other")
    alone = write_run(tmp_path, "alone")
    ids = {path: path.relative_to(tmp_path).as_posix() for path in (first, second, third, other, alone)}
    server = serve(tmp_path)
    for path in (first, third):
        with server.events("/api/watch", id=ids[path]) as events:
            found = next(events)["family"]
        assert [(run["id"], run["parent"]) for run in found] == [
            (ids[first], None),
            (ids[other], ids[first]),
            (ids[second], ids[first]),
            (ids[third], ids[second]),
        ]
    origin = {"kind": "fork", "run": ids[first], "step": 100, "changes": ["agent.rate: 0.1 → 0.5"]}
    assert next(run["origin"] for run in found if run["id"] == ids[second]) == origin
    with server.events("/api/watch", id=ids[alone]) as events:
        assert next(events)["family"] == []


def test_a_family_whose_metadata_run_in_a_circle_is_still_shown(tmp_path: Path, serve: Serve) -> None:
    first = write_run(tmp_path, "first")
    second = forked(tmp_path, first, "second")
    metadata = json.loads((first / "metadata.json").read_text())
    fork = {"run": "/".join(second.parts[-3:]), "path": str(second), "step": 1, "changes": {}}
    (first / "metadata.json").write_text(json.dumps({**metadata, "fork": fork}))
    with serve(tmp_path).events("/api/watch", id=first.relative_to(tmp_path).as_posix()) as events:
        assert len(next(events)["family"]) == 2


def test_a_crash_and_a_lossy_resume_are_among_the_warnings(tmp_path: Path, serve: Serve) -> None:
    path = write_run(tmp_path, status="running")
    metadata = json.loads((path / "metadata.json").read_text())
    lost = {"number": 1, "step": 50, "checkpoint": None, "grade": "approximate", "lost": ["the <b>world</b>"]}
    (path / "metadata.json").write_text(json.dumps({**metadata, "exact": False, "resumes": [lost]}))
    (path / "metrics.jsonl").write_bytes(b"broken\n")
    server = serve(tmp_path)
    with server.events("/api/watch", id=path.relative_to(tmp_path).as_posix()) as events:
        texts = [warning["text"] for warning in next(events)["warnings"]]
    assert any("This run crashed" in text for text in texts)
    assert "Resume 1 at step 50: the <b>world</b>" in texts
    assert "metrics.jsonl: 1 line cannot be read (1)" in texts


def test_warnings_of_the_training_are_pushed_as_they_come_the_newest_first(tmp_path: Path, serve: Serve) -> None:
    path = write_run(tmp_path)
    server = serve(tmp_path)
    with server.events("/api/watch", id=path.relative_to(tmp_path).as_posix()) as events:
        assert next(events)["warnings"] == []
        with closing(JsonLines(path / "warnings.jsonl")) as log:
            for text in ("<b>slow</b>", "full"):
                log.append({"env_steps": 1200, "wall_time": 1.0, "message": text})
        told = next(event for event in events if event["kind"] == "run" and event["warnings"])["warnings"]
    assert told == [{"level": "warning", "text": f"At step 1,200: {text}"} for text in ("full", "<b>slow</b>")]


def test_episodes_are_given_by_the_page_the_newest_first(tmp_path: Path, serve: Serve) -> None:
    id_ = write_run(tmp_path, episodes=120).relative_to(tmp_path).as_posix()
    server = serve(tmp_path)
    page = server.json("/api/rows", id=id_, count=50)
    assert ([row["row"] for row in page["rows"]], page["total"]) == (list(range(119, 69, -1)), 120)
    page = server.json("/api/rows", id=id_, count=50, before=20)
    assert [row["row"] for row in page["rows"]] == list(range(19, -1, -1))
    assert server.json("/api/rows", id=id_, log="eval_episodes")["total"] == 24


def test_a_live_run_is_stopped_with_the_token(tmp_path: Path, serve: Serve, train: Train) -> None:
    training = train(tmp_path)
    server = serve(tmp_path)
    headers = {"Origin": f"http://127.0.0.1:{server.port}"}
    status, _, body = server.request("POST", "/api/stop", headers, id=training.id)
    assert (status, json.loads(body)) == (200, {"asked": True})
    assert training.process.wait(30) == 0
    assert RunReader(training.path).metadata.stop_reason == "asked to stop in the dashboard"
    status, _, body = server.request("POST", "/api/stop", headers, id=training.id)
    assert status == 409
    assert b"not live" in body


def test_tags_are_changed_while_a_run_is_live(tmp_path: Path, serve: Serve) -> None:
    run = TrainingRun.create("lake", root=tmp_path, tags=["old"])
    id_ = run.path.relative_to(tmp_path).as_posix()
    server = serve(tmp_path)
    headers = {"Origin": f"http://127.0.0.1:{server.port}"}
    status, _, body = server.request("POST", "/api/tags", headers, id=id_, add="new reward", remove="old")
    assert (status, json.loads(body)) == (200, {"tags": ["new reward"]})
    assert run.reader.tags == ("new reward",)
    run.close()


@pytest.mark.parametrize("tag", ["", "a/b", "../../evil", "a\nb", "x" * 65, "\x1b[2J", "a,b"], ids=ascii)
def test_a_tag_that_cannot_be_one_is_refused(tmp_path: Path, serve: Serve, tag: str) -> None:
    path = write_run(tmp_path)
    server = serve(tmp_path)
    headers = {"Origin": f"http://127.0.0.1:{server.port}"}
    for change in ("add", "remove"):
        status, _, body = server.request("POST", "/api/tags", headers, id="/".join(path.parts[-3:]), **{change: tag})
        assert status == 400
        assert b"printable characters" in body
    assert not (path / "tags").exists()
    assert server.request("POST", "/api/tags", headers, id="../lake", add="good")[0] == 404


def test_a_request_that_changes_a_run_needs_token_and_origin(tmp_path: Path, serve: Serve) -> None:
    run = TrainingRun.create("lake", root=tmp_path)
    server = serve(tmp_path)
    here = f"http://127.0.0.1:{server.port}"
    refused: list[dict[str, str]] = [
        {"X-Rekindle-Token": ""},
        {"X-Rekindle-Token": "", "Origin": here},
        {"X-Rekindle-Token": "wrong", "Origin": here},
        {"X-Rekindle-Token": "", "Cookie": f"rekindle-{server.port}=wrong", "Origin": here},
        {},
        {"Cookie": server.cookie},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": f"{here}.evil.example"},
        {"Origin": f"http://127.0.0.1:{server.port + 1}"},
        {"Origin": here, "Sec-Fetch-Site": "cross-site"},
        {"Origin": here, "Sec-Fetch-Site": "same-site"},
    ]
    id_ = run.path.relative_to(tmp_path).as_posix()
    for address, options in (("/api/stop", {"id": id_}), ("/api/tags", {"id": id_, "add": "evil"})):
        for headers in refused:
            assert server.request("POST", address, headers, **options)[0] in (401, 403), headers
        assert server.request("GET", address, {"Origin": here}, **options)[0] == 405
    assert list((run.path / "control").iterdir()) == []
    assert not (run.path / "tags").exists()
    run.close()


READS = ("/api/about", "/api/list", "/api/watch", "/api/detail", "/api/rows", "/api/", "/api", "/nowhere", "//api/list")


def test_nothing_of_a_run_is_told_without_the_token(tmp_path: Path, serve: Serve) -> None:
    write_run(tmp_path, "secret")
    server = serve(tmp_path)
    other_port = f"rekindle-{server.port + 1}={server.token}"
    for path in READS:
        for headers in ({}, {"Cookie": f"rekindle-{server.port}=wrong"}, {"Cookie": other_port}):
            status, _, body = server.request("GET", path, {"X-Rekindle-Token": "wrong", **headers})
            assert status == 401, path
            assert b"open the link that rekindle dashboard printed" in body
            assert server.token.encode() not in body
    for headers in ({}, {"X-Rekindle-Token": "", "Cookie": f"other=1; {server.cookie}; more=2"}):
        status, _, body = server.request("GET", "/api/about", headers)
        assert status == 200
        assert server.token.encode() not in body


def test_the_link_brings_the_token_into_a_cookie_and_out_of_the_address(tmp_path: Path, serve: Serve) -> None:
    server = serve(tmp_path)
    nobody = {"X-Rekindle-Token": ""}
    status, headers, _ = server.request("GET", "/", nobody, token=server.token)
    assert (status, headers["location"]) == (303, "/")
    cookie, *flags = headers["set-cookie"].split("; ")
    assert (cookie, flags) == (server.cookie, ["Path=/", "HttpOnly", "SameSite=Strict"])
    assert headers["cache-control"] == "no-store"
    status, headers, _ = server.request("GET", "/", nobody, token="wrong")
    assert status == 403
    assert "set-cookie" not in headers
    # The page itself says nothing, so that a link on another site can lead to it, where a strict cookie is not sent.
    assert server.request("GET", "/", nobody)[0] == 200


def test_other_sites_and_other_ports_may_not_ask_but_may_link(tmp_path: Path, serve: Serve) -> None:
    server = serve(tmp_path)
    for site in ("cross-site", "same-site", "unknown"):
        foreign = {"Sec-Fetch-Site": site, "Cookie": server.cookie}
        for path in ("/", "/api/about", "/api/list", "/static/main.js"):
            for mode in ("no-cors", "cors", "websocket"):
                assert server.request("GET", path, {**foreign, "Sec-Fetch-Mode": mode})[0] == 403, (site, path, mode)
        navigation = {**foreign, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert server.request("GET", "/", navigation)[0] == 200
        assert server.request("GET", "/", navigation, token=server.token)[0] == 303
        assert server.request("GET", "/api/list", navigation)[0] == 403
        assert server.request("GET", "/", {**navigation, "Sec-Fetch-Dest": "iframe"})[0] == 403
    for site in ("same-origin", "none"):
        assert server.request("GET", "/api/about", {"Sec-Fetch-Site": site})[0] == 200


def test_another_host_name_is_refused_so_that_no_site_can_take_ours(tmp_path: Path, serve: Serve) -> None:
    server = serve(tmp_path)
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "", "[", "localhost.evil"):
        for path in ("/", "/api/about", "/api/list", "/static/main.js"):
            assert server.request("GET", path, {"Host": host})[0] in (400, 421), host
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:80", "LOCALHOST:1"):
        assert server.request("GET", "/api/about", {"Host": host})[0] == 200, host


def test_every_answer_carries_the_headers_that_keep_pages_to_themselves(tmp_path: Path, serve: Serve) -> None:
    server = serve(tmp_path)
    for path in ("/", "/api/about", "/static/main.js", "/nowhere"):
        _, headers, _ = server.request("GET", path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "access-control-allow-origin" not in headers


def test_there_is_no_way_out_of_the_directories(tmp_path: Path, serve: Serve) -> None:
    write_run(tmp_path / "runs")
    secret = write_run(tmp_path / "secret", "secret")
    (tmp_path / "runs" / "linked").symlink_to(secret.parent.parent)
    server = serve(tmp_path / "runs")
    for id_ in ("../secret/secret/v1/" + secret.name, "linked/v1/" + secret.name, str(secret), "..", "", "\0"):
        for path in ("/api/watch", "/api/rows", "/api/detail"):
            assert server.request("GET", path, None, id=id_, to=1, **{"from": "0"})[0] == 404
    outside = ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/..")
    for path in outside:
        assert server.request("GET", path)[0] == 404, path


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/api/detail", {"from": "x", "to": "1"}),
        ("/api/detail", {"from": "nan", "to": "1"}),
        ("/api/detail", {"from": "0", "to": "1", "by": "id"}),
        ("/api/rows", {"log": "lock"}),
        ("/api/rows", {"log": "warnings"}),
        ("/api/rows", {"before": "inf"}),
        ("/api/watch", {"points": "many"}),
    ],
)
def test_a_request_that_makes_no_sense_is_told(tmp_path: Path, serve: Serve, path: str, query: dict[str, str]) -> None:
    id_ = write_run(tmp_path).relative_to(tmp_path).as_posix()
    assert serve(tmp_path).request("GET", path, None, id=id_, **query)[0] == 400


def test_it_listens_on_the_loopback_interface_unless_told_otherwise(
    tmp_path: Path, serve_process: ServeProcess
) -> None:
    server = serve_process(tmp_path)
    assert server.address == f"http://127.0.0.1:{server.port}/?token={server.token}"
    assert len(server.token) >= 32
    with socket.socket() as other:  # the same port is free on every other address
        other.bind(("127.0.0.2", server.port))


def test_another_host_is_served_with_a_token_too(tmp_path: Path, serve_process: ServeProcess) -> None:
    server = serve_process(tmp_path, "--host", "0.0.0.0")
    assert server.address == f"http://0.0.0.0:{server.port}/?token={server.token}"
    assert server.request("GET", "/api/about", {"X-Rekindle-Token": ""})[0] == 401
    headers = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert server.request("POST", "/api/stop", headers, id="none")[0] == 404


def test_it_ends_at_once_with_open_streams_and_leaves_the_training_alone(
    tmp_path: Path, serve_process: ServeProcess, train: Train
) -> None:
    training = train(tmp_path)
    server = serve_process(tmp_path)
    with server.events("/api/list") as rows, server.events("/api/watch", id=training.id) as events:
        next(rows)
        next(events)
        code, err = server.end()
    assert code == 0
    assert (
        err == f"rekindle: runs in {tmp_path}; Ctrl-C ends it\nrekindle: the dashboard has ended; trainings continue\n"
    )
    assert training.process.poll() is None


def test_looking_changes_nothing(tmp_path: Path, serve: Serve) -> None:
    path = write_run(tmp_path, status="running")
    before = file_bytes(path)
    server = serve(tmp_path)
    id_ = path.relative_to(tmp_path).as_posix()
    with server.events("/api/watch", id=id_) as events:
        next(events)
        server.json("/api/rows", id=id_)
    assert file_bytes(path) == before


def dashboard_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rekindle", "dashboard", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_port_that_is_taken_and_a_directory_that_is_none_are_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = dashboard_command(tmp_path, "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"rekindle: cannot listen on 127.0.0.1 port {port}: Address already in use; choose another --port\n"
    )
    done = dashboard_command(tmp_path / "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    done = dashboard_command(tmp_path, "--port", 70_000)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['starlette.applications'] = None\n"
        f"from rekindle.cli import main; sys.exit(main(['dashboard', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert 'pip install "rekindle-rl[dashboard]"' in done.stderr


def test_uplot_is_the_file_that_was_published() -> None:
    digests = {
        "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    vendor = STATIC / "vendor" / "uplot"
    assert {name: hashlib.sha256((vendor / name).read_bytes()).hexdigest() for name in digests} == digests
    assert "Leon Sorokin" in (vendor / "LICENSE").read_text()


def test_the_pages_ask_nobody_else_and_run_no_text() -> None:
    own = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".html", ".css"} and "vendor" not in path.parts]
    assert own
    for path in own:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        for danger in ("http:", "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"):
            assert danger not in text, (path, danger)
        assert not (path.suffix == ".html" and ("style=" in text or " on" in text.split("<body")[0]))


def test_a_run_that_appears_is_found_by_its_address_before_the_next_search(tmp_path: Path, serve: Serve) -> None:
    server = serve(tmp_path)
    with server.events("/api/list") as events:
        assert next(events)["count"] == 0
        id_ = write_run(tmp_path).relative_to(tmp_path).as_posix()
        assert server.json("/api/rows", id=id_)["total"] == 20
        wait_until(lambda: next(events)["runs"])
