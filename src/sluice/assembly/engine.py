"""From options to a running engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sluice.assembly.info import EngineInfo
from sluice.assembly.load import load
from sluice.assembly.tiers import check_disk, without_disk_away
from sluice.config import ConfigError, EngineConfig, TraceConfig
from sluice.engine.engine import Engine
from sluice.engine.heartbeat import Heartbeat
from sluice.engine.messages import BlocksLoaded, Copied
from sluice.engine.protocols import Link
from sluice.faults import Fault
from sluice.tracing.file import create


def build_engine(
    config: EngineConfig,
    link: Link,
    *,
    progress: bool,
    heartbeat: Heartbeat | None = None,
    faults: Sequence[Fault] = (),
    follows: bool = False,
) -> tuple[Engine, EngineInfo]:
    """Load a model and build an engine over it.

    Args:
        config: as the user gave it; open options are resolved here.
        link: where messages come from and outputs go.
        progress: show a progress bar on stderr while weights load.
        heartbeat: receives the signs of life of the engine's steps.
        faults: to inject.
        follows: whether it takes over the requests of another engine: then it starts without a disk tier that is not
            available now.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError: a model that cannot be found or loaded.
    """
    # First, since a path that cannot be written should be reported before minutes of loading.
    if follows:
        config = without_disk_away(config)
    else:
        check_disk(config.cache)
    path = _new_trace(config.trace)
    loaded = load(config, progress=progress)
    state = loaded.state()
    tiers = loaded.tiers.open(state, lambda done: link.post(Copied(done)))
    with ExitStack() as undo:
        undo.callback(tiers.copies.close)
        runner = loaded.runner(heartbeat, faults, state, tiers, lambda *blocks: link.post(BlocksLoaded(*blocks)))
        undo.callback(runner.close)
        info = loaded.built(runner)
        engine = loaded.engine(link, runner, tiers, trace=path)
        undo.pop_all()
    return engine, info


def _new_trace(config: TraceConfig) -> Path | None:
    """Create the empty file of the trace, if there is to be one."""
    if config.trace is None:
        return None
    path = Path(config.trace)
    try:
        create(path)
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be written: {error.strerror}") from error
    return path
