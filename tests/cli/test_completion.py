"""Completion in shells: what bash and fish offer, and that each shell can read its script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sluice import cli


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell, named like the shell."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "a file.json").touch()
    return folder


@pytest.fixture(autouse=True)
def written(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        if not (scripts / shell).exists():
            assert cli.main(["completion", shell]) == 0
            (scripts / shell).write_text(capsys.readouterr().out)


def completed(scripts: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    ask = 'source ./bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; printf "%s\\n" "${COMPREPLY[@]}"'
    command = ["bash", "--norc", "-c", ask, "bash", "sluice", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=scripts).stdout.split("\n")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ch"], ["chat"]),
        (["cache", ""], ["inspect"]),
        (["cache", "ins"], ["inspect"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["serve", "--dty"], ["--dtype"]),
        (["serve", "--dtype", "fl"], ["float64", "float32", "float16"]),
        (["serve", "--dtype", "=", "bf"], ["bfloat16"]),
        (["serve", "--port", ""], [""]),
        (["serve", "--no-enable-prefix"], ["--no-enable-prefix-caching"]),
        (["bench", "--preset", "inter"], ["interference"]),
        (["trace", "a"], ["a file.json"]),
        (["chat", "serve", "--ur"], ["--url"]),
        (["nonsense"], [""]),
    ],
)
def test_bash_offers(scripts: Path, words: list[str], offered: list[str]) -> None:
    assert completed(scripts, *words) == offered


def test_hidden_flags_are_not_offered(scripts: Path) -> None:
    """Hundreds of aliases of other engines would bury what there is."""
    for shell in ("bash", "zsh", "fish"):
        text = (scripts / shell).read_text()
        assert "max-num-seqs" not in text
        assert "max-running-requests" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_script(scripts: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    done = subprocess.run([shell, "-n", scripts / shell], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_offers(scripts: Path) -> None:
    """fish says what it offers for a line."""

    def offered(line: str) -> list[str]:
        ask = ["fish", "--no-config", "-c", f"source ./fish; complete -C {line!r}"]
        said = subprocess.run(ask, capture_output=True, text=True, check=True, cwd=scripts).stdout
        return [each.partition("\t")[0] for each in said.splitlines()]

    assert offered("sluice ch") == ["chat"]
    assert offered("sluice serve --dtype bf") == ["bfloat16"]
    assert offered("sluice cache ins") == ["inspect"]
    assert "--url" in offered("sluice chat --ur")
    assert offered("sluice serve --ur") == []


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["completion", "csh"])
    assert end.value.code == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
