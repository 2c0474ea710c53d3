"""TLS: the certificate and the key by which the server proves who it is."""

from __future__ import annotations

import ssl
from pathlib import Path

from sluice.config import ConfigError, ServerConfig

HTTP = "http/1.1"


class _Encrypted(Exception):
    """The key can only be read with a password."""


def read_certificate(server: ServerConfig) -> ssl.SSLContext | None:
    """Return what TLS connections of the server are opened with; None if it speaks HTTP.

    Raises:
        ConfigError: a file cannot be read, is no certificate or key, or one is not the key of the other.
    """
    certificate, key = server.ssl_certfile, server.ssl_keyfile
    if certificate is None:
        if key is not None:
            raise ConfigError(f"--ssl-keyfile {key} needs a certificate (--ssl-certfile FILE)")
        return None
    certificate_option = f"--ssl-certfile {certificate}"
    key_option = certificate_option if key is None else f"--ssl-keyfile {key}"
    _check_readable(certificate_option, certificate)
    if key is not None:
        _check_readable(key_option, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([HTTP])
    try:
        ssl.create_default_context().load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise ConfigError(f"{certificate_option} holds no certificate in PEM format: {error}") from error
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except _Encrypted as error:
        raise ConfigError(f"{key_option} is encrypted; decrypt it: openssl pkey -in FILE -out PLAIN") from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key_option} is not the key of {certificate_option}") from error
        what = f"{key_option} holds no private key in PEM format"
        hint = "; name its file with --ssl-keyfile" if key is None else f": {error}"
        raise ConfigError(what + hint) from error
    return context


def _check_readable(option: str, file: str) -> None:
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} cannot be read: {error.strerror}") from error


def _refuse_password() -> str:
    raise _Encrypted
