"""Options of the ranks that compute one model together."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.base import option

SEE = "See [parallel.md](parallel.md)."


@dataclass(frozen=True)
class ParallelConfig:
    """How many processes compute the model, and where they run."""

    tp_size: int = option(
        1,
        "ranks that share each layer (tensor parallel)",
        more="A rank is a process with a device of its own. The number must divide the model's attention heads, and"
        f" divide its KV heads or be a multiple of them. {SEE}",
        aliases=("tensor_parallel_size", "tp"),
        short="-tp",
        sglang="--tp-size",
        vllm="--tensor-parallel-size",
        positive=True,
    )
    pp_size: int = option(
        1,
        "stages that hold the layers one after the other (pipeline parallel)",
        more=f"Each stage has --tp-size ranks. At most as many as the model has layers. {SEE}",
        aliases=("pipeline_parallel_size", "pp"),
        short="-pp",
        sglang="--pp-size",
        vllm="--pipeline-parallel-size",
        positive=True,
    )
    nnodes: int = option(
        1,
        "number of machines",
        more="Each has an equal share of the ranks. `sluice serve` is started on every one of them with the same"
        " options but --node-rank, and serves HTTP on the first. Needs --dist-init-addr and --dist-token-file.",
        sglang="--nnodes",
        vllm="--nnodes",
        positive=True,
    )
    node_rank: int = option(
        0,
        "number of this machine, from 0",
        sglang="--node-rank",
        vllm="--node-rank",
    )
    dist_init_addr: str | None = option(
        None,
        "address of the first machine, for the other ones alone",
        unset="127.0.0.1, for the ranks of one machine",
        more="An address and a port on which the first machine listens. All that ranks exchange goes through"
        " this address's network, which must be private:"
        " see [security.md](security.md#several-ranks). Needs --nnodes.",
        sglang="--dist-init-addr",
        metavar="HOST:PORT",
    )
    dist_token_file: str | None = option(
        None,
        "file with the token by which machines recognise each other",
        unset="none",
        more="32 bytes that only its owner can read, the same on every machine. The first machine makes the file if"
        " there is none. Needs --nnodes.",
        metavar="FILE",
    )
    distributed_executor_backend: str = option(
        "mp",
        "who starts the ranks: mp, ray, uni",
        more="mp: the engine starts those of its machine. ray: Ray places them on the machines of its cluster, and"
        f" needs the extra `ray`. uni: there is one rank alone. {SEE}",
        choices=("mp", "ray", "uni"),
        vllm="--distributed-executor-backend",
        metavar="WHO",
    )
