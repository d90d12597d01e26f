# SPDX-License-Identifier: MIT
"""Builds consumer.pyx against the installed fastattn: header, declarations and library."""

import os

from setuptools import Extension, setup

import fastattn

os.chdir(os.path.dirname(os.path.abspath(__file__)))
directory = os.path.dirname(fastattn.get_library())
setup(
    name="consumer",
    ext_modules=[
        Extension(
            "consumer",
            ["consumer.pyx"],
            include_dirs=[fastattn.get_include()],
            library_dirs=[directory],
            runtime_library_dirs=[directory],
            libraries=["fastattn"],
        )
    ],
)
