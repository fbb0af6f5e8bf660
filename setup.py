"""Installation: `pip install .`; a host that only runs Artifacts needs just numpy and jax (see README)."""

from setuptools import find_packages, setup

setup(
    name="namedmesh",
    version="0.1.0",
    description="Models in named dimensions on device meshes, with a communication plan checked against the compiler",
    packages=find_packages(include=["namedmesh", "namedmesh.*"]),
    package_data={"namedmesh": ["py.typed"]},
    python_requires=">=3.11",
    install_requires=[
        "tensorflow==2.21.*",
        "numpy>=2",
        "sentencepiece>=0.2",
        "absl-py>=2",
        "jax>=0.10,<0.12",
        "jaxlib>=0.10,<0.12",
        "opt_einsum>=3.4",
        "PyYAML>=6",
    ],
    entry_points={"console_scripts": ["namedmesh = namedmesh.command:main"]},
    extras_require={
        "training": ["orbax-checkpoint>=0.12", "rich>=13", "safetensors>=0.5", "tensorboardX>=2.6"],
        "m4": [
            "orbax-checkpoint>=0.12",
            "rich>=13",
            "safetensors>=0.5",
            "sacrebleu>=2.4",
            "matplotlib>=3.9",
            "tensorboardX>=2.6",
        ],
        "test": ["pytest", "pytest-xdist", "hypothesis", "ruff", "pyright"],
    },
)
