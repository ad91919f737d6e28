"""What the documentation build does not check: the programs, the links, and the places that the pages name."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.agents.names import NAMES
from rekindle.cli.commands import COMMANDS
from rekindle.errors import RekindleError
from rekindle.storage import codec
from rekindle.verification import verify

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

STEPS = re.compile(r"(\b(?:max_steps|steps|checkpoint_every|metrics_every|eval_every)=|session\.every\()([\d_]+)")
FEWER = 20
"""How many times fewer steps a program is run for than it says."""


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", text(page), flags=re.DOTALL | re.MULTILINE)


def shortened(program: str) -> str:
    return STEPS.sub(lambda match: f"{match[1]}{max(1, int(match[2].replace('_', '')) // FEWER)}", program)


def output_of(program: str, directory: Path) -> str:
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text(page), flags=re.DOTALL | re.MULTILINE), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def test_the_navigation_lists_every_page_once() -> None:
    listed = re.findall(r"[\w/-]+\.md\b", text(ROOT / "mkdocs.yml"))
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_the_programs_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    output_of(shortened("\n\n".join(blocks(page, "python"))), tmp_path)


def test_settings_of_stable_baselines_have_the_names_that_error_messages_give() -> None:
    page = ROOT / "docs/how-to/stable-baselines3.md"
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text(page), re.MULTILINE)
    assert len(rows) > 20
    assert [(theirs, ours) for theirs, ours in rows if ours not in NAMES[theirs][0]] == []


@pytest.mark.exhaustive
def test_the_program_for_stable_baselines_runs(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    (program,) = blocks(ROOT / "docs/how-to/stable-baselines3.md", "py")
    shorter = program.replace("50_000", "2_500").replace("10_000", "500").replace(", progress_bar=True", "")
    command = [sys.executable, "-c", shorter]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_the_digests_of_the_tutorial_are_those_of_its_program(tmp_path: Path) -> None:
    page = ROOT / "docs/tutorial.md"
    assert output_of(blocks(page, "python")[0], tmp_path) in text(page)
    found = verify(tmp_path / "runs/lake").digests
    shown = dict(re.findall(r"^(weights|state|logs) digest +(\w{12}) +\2$", text(page), re.MULTILINE))
    assert shown == {kind: str(digest)[:12] for kind, digest in found.items()}
    again = text(ROOT / "docs/how-to/command-line.md")  # it shows the same run
    assert dict(re.findall(r"^(weights|state|logs) digest +(\w{12}) +\2$", again, re.MULTILINE)) == shown
    assert dict(re.findall(r"^(weights|state|logs) +(\w{64})$", again, re.MULTILINE)) == found


START = "    stream = session.stream()\n"


KILL = """
import os, time

def kill():
    while not (session.run.path / "checkpoints" / "step_15000.mpk").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)

"""


def program_with_a_session(page: Path) -> str:
    return next(block for block in blocks(page, "python") if START in block)


@pytest.mark.slow
@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/tutorial.md"], ids=name)
def test_the_program_with_a_session_goes_on_when_it_is_run_again(page: Path, tmp_path: Path) -> None:
    program = shortened(program_with_a_session(page))
    stopped = program.replace(START, f"{START}    session.every(300, lambda: session.stop('enough'))\n")
    assert output_of(stopped, tmp_path).startswith("300 steps, ")
    assert output_of(program, tmp_path).startswith("resumed at step 300, exact\n2500 steps, ")


@pytest.mark.exhaustive
def test_the_output_in_the_readme_is_that_of_its_program_killed_and_run_again(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    program = program_with_a_session(page)
    killed = program.replace(START, f"{START}    session.every(16_500, kill)\n")
    command = [sys.executable, "-c", KILL + killed]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == -signal.SIGKILL
    assert output_of(program, tmp_path) == blocks(page, "text")[0]


def test_the_moving_picture_shows_a_kill_and_an_equal_result() -> None:
    picture = ROOT / "docs/images/kill-and-resume.svg"
    shown = re.sub(r"<[^>]*>", "", text(picture))
    for part in (
        "rekindle train dqn CartPole-v1",
        "kill -9 ",
        "Killed",
        "rekindle resume runs/killed",
        "Equal to the bit:",
    ):
        assert part in shown
    assert "weights yes, state yes, logs yes" in shown
    assert picture.stat().st_size < 500_000


def test_every_picture_of_the_documentation_is_shown_somewhere_and_small() -> None:
    shown = "".join(text(page) for page in PAGES)
    for picture in (ROOT / "docs/images").iterdir():
        assert picture.name in shown
        assert picture.stat().st_size < (1_100_000 if picture.suffix == ".gif" else 220_000)


def the_reader_in_the_documentation() -> Any:
    names: dict[str, Any] = {}
    exec(blocks(ROOT / "docs/formats.md", "python")[0], names)
    return names["read_mpk"]


def test_the_reader_in_the_documentation_reads_the_format() -> None:
    tree = {
        "numbers": [0, 127, 128, -1, -32, -33, 2**16, -(2**31), 2**64 - 1, -(2**63), 0.1, -0.0, float("inf")],
        "texts": ["", "a", "ü" * 20, "b" * 300, "c" * 70_000],
        "constants": [None, True, False],
        "nested": {"long": list(range(70_000)), "wide": {str(key): key for key in range(70_000)}, "empty": {}},
        "arrays": [np.arange(24).reshape(2, 3, 4).astype(dtype) for dtype in "?bhilBHILefdFD"],
        "shapes": [np.array(3.0, np.float32), np.zeros((0, 5)), np.arange(10_000.0)],
    }
    data = b"".join(codec.encode(tree))
    assert codec.tree_digest(the_reader_in_the_documentation()(data)) == codec.tree_digest(tree)


@pytest.mark.parametrize("path", sorted((ROOT / "tests/golden").glob("*.mpk")), ids=name)
def test_the_reader_in_the_documentation_reads_old_files(path: Path) -> None:
    read = the_reader_in_the_documentation()
    assert codec.tree_digest(read(path.read_bytes())) == codec.tree_digest(codec.read_file(path))


def test_the_reader_in_the_documentation_notices_damage() -> None:
    data = bytearray(b"".join(codec.encode({"values": np.arange(5)})))
    data[-1] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        the_reader_in_the_documentation()(bytes(data))
    with pytest.raises(RekindleError, match="checksum"):
        codec.decode(data, name="damaged")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    lost: list[str] = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        found = page.parent / file if file else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            lost.append(target)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_place_in_the_repository_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`((?:tests|benchmarks|examples|src|docs)/[\w./-]*)`", text(page))
    assert [place for place in named if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    inline = re.findall(r"`(rekindle [^`]*)`", prose(page))
    shown = re.findall(r"^rekindle ([a-z]+)", "\n".join([*blocks(page, "sh"), *inline]), re.MULTILINE)
    assert sorted(set(shown) - set(COMMANDS)) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.MULTILINE))
    assert sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", text(page), re.MULTILINE)) - targets) == []
