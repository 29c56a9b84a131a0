"""The layouts of the two meshes, by parameter name and shape."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from shardwire.compiler.layout import Placement, Replicate, Shard, StridedShard

# Tensor parallelism with the parameter names of GPT-2, Llama, BERT and GPT-NeoX. "column" cuts the outputs of a matrix,
# "row" the inputs, "vocabulary" the rows of an embedding; a torch Linear's weight is (out, in), GPT-2's Conv1D (in,
# out).
_COLUMN_LINEAR = re.compile(
    r"(^|\.)(q_proj|k_proj|v_proj|gate_proj|up_proj|query|key|value|intermediate\.dense|query_key_value|"
    r"dense_h_to_4h|fc1|fc_in)\.(weight|bias)$")
_ROW_LINEAR = re.compile(
    r"(^|\.)(o_proj|out_proj|down_proj|output\.dense|attention\.dense|dense_4h_to_h|fc2|fc_out)\.(weight|bias)$")
_FUSED_QKV = re.compile(r"(^|\.)c_attn\.(weight|bias)$")
_COLUMN_CONV1D = re.compile(r"(^|\.)c_fc\.(weight|bias)$")
_ROW_CONV1D = re.compile(r"(^|\.)c_proj\.(weight|bias)$")
_VOCABULARY = re.compile(r"(^|\.)(wte|embed_tokens|word_embeddings|embed_in|lm_head|embed_out|decoder)\.(weight|bias)$")
_REPLICATED = re.compile(
    r"(^|\.)(wpe|position_embeddings|token_type_embeddings|position_ids|ln_\w+|\w*layer_?norm\w*|\w*norm)(\.|$)",
    re.IGNORECASE)
# Unknown matrices below this many elements are not worth cutting.
_SMALL = 1 << 14


def training_placement(shape: Sequence[int]) -> Placement:
    """The training mesh cuts every parameter along its first dimension; a scalar is on all ranks."""
    return Shard(0) if len(shape) else Replicate()


def inference_placement(name: str, shape: Sequence[int], num_ranks: int) -> tuple[Placement, str]:
    """The placement over ``num_ranks`` ranks, and the name of the rule: "column", "row", "vocabulary", "replicated" or
    "by shape"."""
    if len(shape) == 0 or num_ranks == 1:
        return Replicate(), "replicated"
    is_matrix = len(shape) == 2
    if _REPLICATED.search(name):
        return Replicate(), "replicated"
    if _FUSED_QKV.search(name):
        dim = _wide_dim(shape)
        # Queries, keys and values lie side by side: each rank takes a part of all three.
        even = shape[dim] % (3 * num_ranks) == 0
        return (StridedShard(dim, 3) if even else Shard(dim)), "column"
    if _COLUMN_CONV1D.search(name):
        return _cut(shape, _wide_dim(shape), num_ranks), "column"
    if _ROW_CONV1D.search(name):
        if not is_matrix:
            return Replicate(), "replicated"
        return _cut(shape, 1 if shape[1] > shape[0] else 0, num_ranks), "row"
    if _VOCABULARY.search(name):
        return _cut(shape, 0, num_ranks), "vocabulary"
    if _COLUMN_LINEAR.search(name):
        return _cut(shape, 0, num_ranks), "column"
    if _ROW_LINEAR.search(name):
        return (_cut(shape, 1, num_ranks), "row") if is_matrix else (Replicate(), "replicated")
    return _by_shape(shape, num_ranks), "by shape"


def _wide_dim(shape: Sequence[int]) -> int:
    """The output dimension of a projection with more outputs than inputs, for either order of the weight's
    dimensions."""
    return 1 if len(shape) == 2 and shape[1] >= shape[0] else 0


def _cut(shape: Sequence[int], dim: int, num_ranks: int) -> Placement:
    return Shard(dim) if shape[dim] >= num_ranks else Replicate()


def _by_shape(shape: Sequence[int], num_ranks: int) -> Placement:
    if len(shape) < 2 or math.prod(shape) < _SMALL:
        return Replicate()
    return _cut(shape, max(range(len(shape)), key=lambda dim: shape[dim]), num_ranks)
