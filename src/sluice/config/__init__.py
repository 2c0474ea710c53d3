"""Every option, once: its name, default, help and group.

The command line, `LLM(...)` and the documentation are built from these dataclasses. `assembly.resolve` fills open
options and refuses what cannot be honoured; nothing later guesses a default.
"""

from sluice.config.base import ConfigError, MemoryShortage, Option, check_values, flag, option, options_of
from sluice.config.compat import FOREIGN, Fixed, Switch
from sluice.config.diffusion import DiffusionConfig
from sluice.config.engine import (
    ENGINE_GROUPS,
    GROUPS,
    EngineConfig,
    canonical,
    let_threads_sleep,
    names_ray_auth_mode,
    names_ray_cluster,
    threads_from_environment,
)
from sluice.config.json_flag import JsonFlag
from sluice.config.kv_events import (
    Endpoint,
    KvEventsConfig,
    KvEventSettings,
    kv_event_settings,
)
from sluice.config.lora import LoraConfig, LoraModule
from sluice.config.model import CacheConfig, ModelConfig, OffloadConfig, TraceConfig
from sluice.config.parallel import ParallelConfig
from sluice.config.scheduler import CHUNKING_OFF, SchedulerConfig, itl_micros
from sluice.config.server import ServerConfig
from sluice.config.speculative import MODEL_DRAFTS, NGRAM_DRAFTS, RUNNER_ALGORITHMS, SpeculativeConfig
