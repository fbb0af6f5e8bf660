"""What models are made of: layers, optimizers and decoding, built on the named ops alone.

Every public name is imported from here: `from namedmesh.layers import moe, Transformer, Adafactor`.
"""

from namedmesh.layers.adafactor import Adafactor as Adafactor
from namedmesh.layers.attention import Heads as Heads
from namedmesh.layers.attention import attend as attend
from namedmesh.layers.attention import causal_mask as causal_mask
from namedmesh.layers.attention import cross_attention as cross_attention
from namedmesh.layers.attention import project_keys_and_values as project_keys_and_values
from namedmesh.layers.attention import project_queries as project_queries
from namedmesh.layers.attention import segment_mask as segment_mask
from namedmesh.layers.attention import self_attention as self_attention
from namedmesh.layers.attention import window_mask as window_mask
from namedmesh.layers.backbone import Backbone as Backbone
from namedmesh.layers.batch import Batch as Batch
from namedmesh.layers.batch import batch_of as batch_of
from namedmesh.layers.beam import Beam as Beam
from namedmesh.layers.beam import length_penalty as length_penalty
from namedmesh.layers.cache import Cache as Cache
from namedmesh.layers.clipping import clip_by_global_norm as clip_by_global_norm
from namedmesh.layers.clipping import global_norm as global_norm
from namedmesh.layers.configuration import CHOICES as CHOICES
from namedmesh.layers.configuration import CONFIGS as CONFIGS
from namedmesh.layers.configuration import Config as Config
from namedmesh.layers.configuration import config as config
from namedmesh.layers.decoder import Decoder as Decoder
from namedmesh.layers.decoding import decode as decode
from namedmesh.layers.dispatch import EinsumDispatch as EinsumDispatch
from namedmesh.layers.dispatch import GatherDispatch as GatherDispatch
from namedmesh.layers.dispatch import make_dispatch as make_dispatch
from namedmesh.layers.dropless import dropless_moe as dropless_moe
from namedmesh.layers.filters import convolution as convolution
from namedmesh.layers.gating import expert_choice_gating as expert_choice_gating
from namedmesh.layers.gating import top_k_gating as top_k_gating
from namedmesh.layers.layer_stack import LayerContext as LayerContext
from namedmesh.layers.layer_stack import LayerStack as LayerStack
from namedmesh.layers.layer_stack import Side as Side
from namedmesh.layers.learning_rate import RateSchedule as RateSchedule
from namedmesh.layers.learning_rate import as_schedule as as_schedule
from namedmesh.layers.learning_rate import constant_rate as constant_rate
from namedmesh.layers.learning_rate import cosine_decay as cosine_decay
from namedmesh.layers.learning_rate import inverse_square_root as inverse_square_root
from namedmesh.layers.learning_rate import linear_cooldown as linear_cooldown
from namedmesh.layers.learning_rate import linear_warmup as linear_warmup
from namedmesh.layers.linear import dense as dense
from namedmesh.layers.linear import feed_forward as feed_forward
from namedmesh.layers.linear import get_activation as get_activation
from namedmesh.layers.loss import binary_cross_entropy as binary_cross_entropy
from namedmesh.layers.loss import cross_entropy as cross_entropy
from namedmesh.layers.loss import soft_cross_entropy as soft_cross_entropy
from namedmesh.layers.loss import symmetric_divergence as symmetric_divergence
from namedmesh.layers.loss import weighted_mean as weighted_mean
from namedmesh.layers.mixture import moe as moe
from namedmesh.layers.norm import batch_norm as batch_norm
from namedmesh.layers.norm import group_norm as group_norm
from namedmesh.layers.norm import layer_norm as layer_norm
from namedmesh.layers.norm import rms_norm as rms_norm
from namedmesh.layers.optimizer_base import Optimizer as Optimizer
from namedmesh.layers.optimizer_base import ParameterUpdate as ParameterUpdate
from namedmesh.layers.optimizer_base import UpdateRule as UpdateRule
from namedmesh.layers.optimizers import Adam as Adam
from namedmesh.layers.optimizers import Sgd as Sgd
from namedmesh.layers.positions import alibi as alibi
from namedmesh.layers.positions import distance_bucket as distance_bucket
from namedmesh.layers.positions import learned_positions as learned_positions
from namedmesh.layers.positions import relative_bias as relative_bias
from namedmesh.layers.positions import rotary as rotary
from namedmesh.layers.positions import sinusoids as sinusoids
from namedmesh.layers.regularization import derive_key as derive_key
from namedmesh.layers.regularization import dropout as dropout
from namedmesh.layers.regularization import jitter as jitter
from namedmesh.layers.routing import ExpertRouting as ExpertRouting
from namedmesh.layers.routing import Routing as Routing
from namedmesh.layers.routing import expert_capacity as expert_capacity
from namedmesh.layers.sampling import Greedy as Greedy
from namedmesh.layers.sampling import Sample as Sample
from namedmesh.layers.transformer import Transformer as Transformer
from namedmesh.layers.vocabulary import embedding as embedding
from namedmesh.layers.vocabulary import vocabulary_logits as vocabulary_logits

__all__ = [
    "CHOICES",
    "CONFIGS",
    "Adafactor",
    "Adam",
    "Backbone",
    "Batch",
    "Beam",
    "Cache",
    "Config",
    "Decoder",
    "EinsumDispatch",
    "ExpertRouting",
    "GatherDispatch",
    "Greedy",
    "Heads",
    "LayerContext",
    "LayerStack",
    "Optimizer",
    "ParameterUpdate",
    "RateSchedule",
    "Routing",
    "Sample",
    "Sgd",
    "Side",
    "Transformer",
    "UpdateRule",
    "alibi",
    "as_schedule",
    "attend",
    "batch_norm",
    "batch_of",
    "binary_cross_entropy",
    "causal_mask",
    "clip_by_global_norm",
    "config",
    "constant_rate",
    "convolution",
    "cosine_decay",
    "cross_attention",
    "cross_entropy",
    "decode",
    "dense",
    "derive_key",
    "distance_bucket",
    "dropless_moe",
    "dropout",
    "embedding",
    "expert_capacity",
    "expert_choice_gating",
    "feed_forward",
    "get_activation",
    "global_norm",
    "group_norm",
    "inverse_square_root",
    "jitter",
    "layer_norm",
    "learned_positions",
    "length_penalty",
    "linear_cooldown",
    "linear_warmup",
    "make_dispatch",
    "moe",
    "project_keys_and_values",
    "project_queries",
    "relative_bias",
    "rms_norm",
    "rotary",
    "segment_mask",
    "self_attention",
    "sinusoids",
    "soft_cross_entropy",
    "symmetric_divergence",
    "top_k_gating",
    "vocabulary_logits",
    "weighted_mean",
    "window_mask",
]
