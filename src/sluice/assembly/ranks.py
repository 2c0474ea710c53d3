"""What the options say of the ranks that compute one model together, and what is refused beside several of them."""

from __future__ import annotations

import os
from dataclasses import fields
from importlib.util import find_spec

from sluice.config import ConfigError, EngineConfig, ParallelConfig, flag
from sluice.parallel.layout import Layout

MAX_RANKS = 1024
MAX_HERE = max(16, 4 * (os.cpu_count() or 1))
"""Ranks of one machine. Each is a process with torch, so a mistyped number could take all memory before the model
refuses it."""


def layout_of(parallel: ParallelConfig) -> Layout:
    """Return the parts that the options cut a model into."""
    return Layout(parallel.tp_size, parallel.pp_size)


def ranks_per_node(parallel: ParallelConfig) -> int:
    """Return how many ranks each machine has, of options that were checked."""
    return layout_of(parallel).size // parallel.nnodes


def ranks_of_node(parallel: ParallelConfig, node: int) -> range:
    """Return the ranks of a machine."""
    each = ranks_per_node(parallel)
    return range(node * each, (node + 1) * each)


def threads_of_rank(config: EngineConfig) -> int:
    """Return how many threads compute in each rank on CPUs, where all ranks are alike."""
    from sluice.device.machine import usable_cores  # loads torch

    return config.model.threads or max(1, usable_cores() // layout_of(config.parallel).size)


def devices_per_node(parallel: ParallelConfig) -> int:
    """Return how many CUDA devices a rank must see, to have one of its own: Ray shows each rank its own alone."""
    return 1 if parallel.distributed_executor_backend == "ray" else ranks_per_node(parallel)


def shown_sizes(parallel: ParallelConfig) -> str:
    """Return the sizes as they were given, those of 1 left out."""
    sizes = {"--tp-size": parallel.tp_size, "--pp-size": parallel.pp_size}
    return " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `--dist-init-addr`.

    Raises:
        ConfigError: it has no such form.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"--dist-init-addr must be HOST:PORT, as 10.0.0.1:5000, got {text!r}")
    if host in ("0.0.0.0", "::"):  # noqa: S104 - refused
        raise ConfigError(f"--dist-init-addr must name one address of the first machine, got {text!r}, which is all")
    return host, int(port)


def refuse_ranks(config: EngineConfig) -> None:
    """Check the options of ranks, and the others beside several ranks.

    Raises:
        ConfigError: an option, or a combination, by name and value.
    """
    parallel = config.parallel
    size = layout_of(parallel).size
    if size > MAX_RANKS:
        raise ConfigError(f"{shown_sizes(parallel)} make {size} ranks; at most {MAX_RANKS} are supported")
    _refuse_nodes(parallel, size)
    if parallel.distributed_executor_backend == "ray":
        _refuse_ray(parallel, size)
    elif (here := size // parallel.nnodes) > MAX_HERE:
        raise ConfigError(f"{shown_sizes(parallel)} put {here} ranks on this machine; accepted: at most {MAX_HERE}")
    if size > 1:
        if parallel.distributed_executor_backend == "uni":
            raise ConfigError(
                f"--distributed-executor-backend uni is one rank alone, and {shown_sizes(parallel)} needs several;"
                " take mp"
            )
        _refuse_beside_ranks(config, shown_sizes(parallel))


def _refuse_ray(parallel: ParallelConfig, size: int) -> None:
    if size == 1:
        raise ConfigError("--distributed-executor-backend ray places several ranks: give --tp-size or --pp-size")
    if parallel.nnodes > 1:
        raise ConfigError(
            f"--nnodes {parallel.nnodes} needs --distributed-executor-backend mp: Ray knows the machines of its cluster"
        )
    if find_spec("ray") is None:
        raise ConfigError("--distributed-executor-backend ray needs the package ray: pip install 'sluice-llm[ray]'")


def _refuse_nodes(parallel: ParallelConfig, size: int) -> None:
    nodes = parallel.nnodes
    if size % nodes:
        raise ConfigError(f"--nnodes must divide --tp-size times --pp-size, {size} ranks, got {nodes}")
    if not 0 <= parallel.node_rank < nodes:
        raise ConfigError(f"--node-rank must be from 0 to --nnodes - 1 = {nodes - 1}, got {parallel.node_rank}")
    across = {"dist_init_addr": parallel.dist_init_addr, "dist_token_file": parallel.dist_token_file}
    for name, value in across.items():
        if nodes == 1 and value is not None:
            raise ConfigError(f"{flag(name)} {value} needs several machines (--nnodes)")
        if nodes > 1 and value is None:
            raise ConfigError(f"--nnodes {nodes} needs {flag(name)}")
    if parallel.dist_init_addr is not None:
        address_of(parallel.dist_init_addr)


def _refuse_beside_ranks(config: EngineConfig, shown: str) -> None:
    model = config.model
    if config.cache.kv_disk is not None:
        raise ConfigError(f"--kv-disk {config.cache.kv_disk} is not supported beside {shown}: leave one of them out")
    for item in fields(config.offload):
        if (value := getattr(config.offload, item.name)) is not None:
            raise ConfigError(
                f"{flag(item.name)} {value} is not supported beside {shown}: contexts longer than the device are served"
                " by one process"
            )
    if model.model_impl == "transformers":
        raise ConfigError(f"--model-impl transformers runs in one process, and {shown} needs several; take native")
    if model.cuda_graph_max_bs is not None:
        raise ConfigError(
            f"--cuda-graph-max-bs {model.cuda_graph_max_bs} has no effect beside {shown}: no step is captured there"
        )
    if model.device.startswith("cuda:"):
        raise ConfigError(
            f"--device {model.device} names one device, and {shown} takes one for each rank: give --device cuda"
        )


def refuse_lookahead(config: EngineConfig, device_type: str) -> None:
    """Check that a pipeline may plan tokens ahead.

    Args:
        device_type: cpu or cuda.

    Raises:
        ConfigError: it may not, there.
    """
    scheduler, stages = config.scheduler, config.parallel.pp_size
    if device_type == "cuda" and stages > 1 and (scheduler.enable_overlap or scheduler.lookahead):
        given = "--enable-overlap" if scheduler.enable_overlap else f"--lookahead {scheduler.lookahead}"
        raise ConfigError(
            f"{given} is not supported beside --pp-size {stages} on cuda: tokens on their way back to the first stage"
            f" could wait for hidden states on their way to the last; --depth sets the steps in flight"
        )
