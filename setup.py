"""Everything but the license is in pyproject.toml.

The license is here because its form there depends on the version of setuptools: those before 77
reject an SPDX expression, later ones reject anything else.
"""

from setuptools import setup

setup(license="Apache-2.0", license_files=["LICENSE"])
