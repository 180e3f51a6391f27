"""Kernel tables that other projects publish, read into our form of a profile: one module a format.

``aiconfigurator.read_tables``, ``aiconfigurator.read_package``, ``vllm_tables.read_tables`` and
``vidur.read_tables`` give a :class:`profiler.profile.Profile`; :data:`FORMATS` says what each reads.
"""

from __future__ import annotations

FORMATS = {
    "aiconfigurator": "NVIDIA AIConfigurator: files, or without any the installed aiconfigurator-core",
    "vllm-tables": "LLMServingSim: a folder with the layers of one vLLM engine",
    "vidur": "Vidur: mlp.csv, attention.csv, all_reduce.csv, or a folder with them",
}
