"""HTTPS: certificates that can be served, and those that cannot."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from serve_process import announced, server, shadow
from serving import PATIENCE
from sluice.config import ConfigError, ServerConfig
from sluice.http.edge.tls import read_certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def made(folder: Path, name: str = "own") -> tuple[str, str]:
    """Make a certificate of this machine that is its own authority, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 -subj /CN=test"
    names = "subjectAltName=IP:127.0.0.1"
    command = [*words.split(), "-addext", names, "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    return str(certificate), str(key)


def test_a_server_with_a_certificate(tmp_path: Path) -> None:
    """All of a call is encrypted, streams too; a client that speaks HTTP gets no answer, and others go on."""
    certificate, key = made(tmp_path)
    origins = '["https://chat.example"]'
    with server(*shadow(0, tmp_path, ssl_certfile=certificate, ssl_keyfile=key, allowed_origins=origins)) as process:
        url = announced(process).split()[2].partition("/v1/")[0]
        assert url.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=certificate)) as client:
            body = {"prompt": "ab", "max_tokens": 8, "seed": 0}
            text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
                assert [*stream.iter_lines()][-2] == "data: [DONE]"
            with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=PATIENCE) as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                assert not plain.recv(1 << 16).startswith(b"HTTP/")
            page = {"origin": "https://chat.example"}
            answer = client.post("/v1/completions", json=body, headers=page)
            assert answer.json()["choices"][0]["text"] == text
            assert answer.headers["access-control-allow-origin"] == page["origin"]
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/health")


def refused(**options: str) -> str:
    with pytest.raises(ConfigError) as error:
        read_certificate(ServerConfig(**options))
    return str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    """A server that cannot prove who it is does not start."""
    certificate, key = made(tmp_path)
    _, other_key = made(tmp_path, "other")
    text, missing, locked = tmp_path / "text", str(tmp_path / "none.pem"), str(tmp_path / "locked.key")
    text.write_text("no certificate")
    command = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    assert read_certificate(ServerConfig()) is None
    assert refused(ssl_keyfile=key) == f"--ssl-keyfile {key} needs a certificate (--ssl-certfile FILE)"
    assert refused(ssl_certfile=missing) == f"--ssl-certfile {missing} cannot be read: No such file or directory"
    assert refused(ssl_certfile=certificate, ssl_keyfile=missing).startswith(f"--ssl-keyfile {missing} cannot be read")
    assert refused(ssl_certfile=str(tmp_path)).endswith("cannot be read: Is a directory")
    assert f"{text} holds no certificate" in refused(ssl_certfile=str(text), ssl_keyfile=key)
    assert f"{text} holds no private key" in refused(ssl_certfile=certificate, ssl_keyfile=str(text))
    assert "name its file with --ssl-keyfile" in refused(ssl_certfile=certificate)
    assert f"{other_key} is not the key of" in refused(ssl_certfile=certificate, ssl_keyfile=other_key)
    assert f"{locked} is encrypted" in refused(ssl_certfile=certificate, ssl_keyfile=locked)


def test_one_file_with_both(tmp_path: Path) -> None:
    certificate, key = made(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(Path(certificate).read_text() + Path(key).read_text())
    assert read_certificate(ServerConfig(ssl_certfile=str(both))) is not None
