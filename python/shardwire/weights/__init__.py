"""Weights between modules of one job, from files and into files. See docs/weights.md.

sync, load and save share three steps: holdings (the weights of a rank), matching (source names to target names),
movement (one compiled op).
"""

from ..compiler.fused import FusedLayout
from .loading import load
from .name_maps import BERT, GPT2, LLAMA, QWEN, NameMap, Part
from .publishing import Publication, publish
from .replicas import check_replicas
from .saving import save
from .subscribing import Subscription, subscribe
from .syncing import WeightSync, sync

__all__ = ["BERT", "GPT2", "LLAMA", "QWEN", "FusedLayout", "NameMap", "Part", "Publication", "Subscription",
           "WeightSync", "check_replicas", "load", "publish", "save", "subscribe", "sync"]
