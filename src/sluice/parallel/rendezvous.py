"""Where the ranks of torch.distributed find each other: a store that listens on one address only.

Neither the store nor gloo and NCCL ask who connects. So each listens on the one address that is named, which must be
the machine itself (127.0.0.1) or be in a network that only the ranks' machines reach.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

SIOCGIFADDR = 0x8915


def listen_store(address: str, timeout: float) -> dist.TCPStore:
    """Return a new store, which listens on a free port of this machine's `address`.

    Args:
        timeout: seconds that the ranks may take to find each other.

    Raises:
        OSError: the address is not this machine's.
    """
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    # Without a listener, the store would listen on every interface.
    return dist.TCPStore(
        address,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def join_store(address: str, port: int, timeout: float) -> dist.TCPStore:
    """Connect to the store of another rank."""
    return dist.TCPStore(address, port, timeout=timedelta(seconds=timeout), wait_for_workers=False)


def own_address(other: str) -> str:
    """Return this machine's address in the network in which another one has the address `other`.

    Raises:
        OSError: there is no way to it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # of a datagram socket: it sends nothing
        return str(probe.getsockname()[0])


def bind_nccl(address: str) -> None:
    """Let NCCL, which knows no addresses, use the interface of `address` alone, in this process.

    Raises:
        ValueError: no interface of this machine has it as an IPv4 address.
    """
    if (interface := _interface_of(address)) is None:
        raise ValueError(
            f"--dist-init-addr on cuda must be an IPv4 address: no interface of this machine has {address} as one, and"
            " NCCL would listen on others"
        )
    os.putenv("NCCL_SOCKET_IFNAME", f"={interface}")


def _interface_of(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None: none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no such address
                found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None
