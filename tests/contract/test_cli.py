"""The commands do what their help says, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from foveate.core.config import Settings
from tests.support.engines import png
from tests.support.harness import tiny


def foveate(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foveate.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, input=stdin)


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny("dense")[2]


def test_every_setting_is_a_flag_with_its_help() -> None:
    shown = foveate("serve", "--help").stdout
    for f in fields(Settings):
        assert f"--{f.name.replace('_', '-')}" in shown
    assert "--encoder-device" in shown


def test_print_config_shows_what_flags_resolved_to(folder: Path) -> None:
    words = ("--max-concurrency", "3", "--encoder-device", "same", "--max-ctx", "512", "--no-encoder-stream")
    done = foveate("serve", str(folder), "--print-config", *words)
    config = json.loads(done.stdout)
    assert config["slots"] == 3 and config["max_ctx"] == 512 and config["encoder_worker"] == "inline"
    assert config["settings"]["encoder_stream"] is False


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--device", "cuda:7"), "cuda:7"),
        (("--device", "tpu"), "unknown device"),
        (("--dtype", "int4"), "unknown dtype"),
        (("--page-len", "0"), "page-len"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(folder: Path, words: tuple[str, ...], reason: str) -> None:
    done = foveate("serve", str(folder), "--print-config", *words)
    assert done.returncode == 1 and reason in done.stderr and "Traceback" not in done.stderr


def test_a_log_level_that_is_none_is_refused_in_one_line(folder: Path) -> None:
    done = foveate("serve", str(folder), "--log-level", "loud")
    assert done.returncode == 1 and "unknown log level: loud" in done.stderr and "Traceback" not in done.stderr


def test_a_missing_model_is_refused_in_one_line() -> None:
    done = foveate("serve", "./nothing-here")
    assert done.returncode == 1 and "no checkpoint at" in done.stderr and "Traceback" not in done.stderr


def test_ask_streams_an_answer_and_draws_the_timeline(folder: Path, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    pictures = [str(tmp_path / f"{number}.png") for number in range(2)]
    done = foveate("ask", str(folder), "What is this?", *pictures, "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    assert "image 2" in done.stdout and "hidden" in done.stdout and "first token" in done.stdout


def test_a_refused_turn_takes_its_pictures_along(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (tmp_path / "good.png").write_bytes(png(1))
    bad, good = (f"/image {tmp_path / name}.png\n" for name in ("bad", "good"))
    done = foveate("chat", str(folder), "--max-tokens", "4", stdin=f"{good}hello\n{good}{bad}look\nagain\nand now?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("unknown format") == 1, "the turns after it are answered"


def test_an_interrupt_at_the_prompt_ends_the_chat(folder: Path) -> None:
    command = [sys.executable, "-m", "foveate.cli", "chat", str(folder), "--max-tokens", "4"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, bufsize=0, **pipes) as chat:
        assert chat.stdin is not None and chat.stdout is not None and chat.stderr is not None
        try:
            chat.stdin.write(b"hello\n")
            said = b""
            while said.count(b"you") < 2:  # it waits at its prompt, and its input stays open
                piece = chat.stdout.read(1)
                assert piece, "the chat ended by itself"
                said += piece
            chat.send_signal(signal.SIGINT)
            chat.wait(60)
            assert b"Traceback" not in chat.stderr.read()
        finally:
            chat.kill()


def test_numbers_that_are_none_are_refused_in_one_line(folder: Path) -> None:
    for words in (("ttft", "--ladder", ""), ("ttft", "--ladder", "one"), ("decode", "--batches", ",")):
        done = foveate("bench", words[0], str(folder), *words[1:])
        assert done.returncode == 2 and "numbers with commas" in done.stderr and "Traceback" not in done.stderr


def test_chat_keeps_the_conversation(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    lines = f"/image {tmp_path / 'a.png'}\nhello\n/image /no/such.png\nand now?\n/new\nhello\n/quit\n"
    done = foveate("chat", str(folder), "--max-tokens", "4", stdin=lines)
    assert done.returncode == 0, done.stderr
    assert "no such file" in done.stdout
