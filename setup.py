"""What pyproject.toml cannot say: the kernels' library carries the digest of its sources, and is no Python module.

It is loaded with ctypes, so that one wheel serves every version of Python: `py3-none-PLATFORM`. With
SLUICE_WITHOUT_KERNELS=1 in the environment nothing is compiled, and the wheel is `py3-none-any`: torch then computes.
"""

import os
from pathlib import Path
from runpy import run_path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path(__file__).parent / "src" / "sluice" / "kernels" / "cpu"
WITHOUT_KERNELS = bool(os.environ.get("SLUICE_WITHOUT_KERNELS"))


class Sluice(Distribution):
    """A distribution whose kernels may be left out."""

    def parse_config_files(self, *args, **options) -> None:
        super().parse_config_files(*args, **options)
        if WITHOUT_KERNELS:
            self.ext_modules = None


class BuildKernels(build_ext):
    """Compiles the kernels whenever it is asked to: times of files do not show which sources a library has."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True

    def get_ext_filename(self, name: str) -> str:
        """Return the file of the library: the same for every version of Python."""
        return f"{Path(*name.split('.'))}.so"

    def build_extension(self, ext) -> None:
        digest = run_path(str(NATIVE / "sources.py"))["digest_of"](NATIVE)
        ext.define_macros.append(("SLUICE_SOURCES", f'"{digest}"'))
        super().build_extension(ext)


class BuildWheel(bdist_wheel):
    """Names the wheel for all versions of Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(distclass=Sluice, cmdclass={"build_ext": BuildKernels, "bdist_wheel": BuildWheel})
