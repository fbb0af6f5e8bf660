"""Training: the loop, checkpoints, weights, metrics, progress and profiling, without TensorFlow."""

from namedmesh.lazy import explain_names
from namedmesh.training.averaging import average_results as average_results
from namedmesh.training.averaging import share_state as share_state
from namedmesh.training.checkpoints import Checkpoints as Checkpoints
from namedmesh.training.metrics import MetricsLog as MetricsLog
from namedmesh.training.metrics import read_metrics as read_metrics
from namedmesh.training.progress import ProgressBar as ProgressBar
from namedmesh.training.progress import format_duration as format_duration
from namedmesh.training.progress import render_table as render_table
from namedmesh.training.restoring import Checkpoint as Checkpoint
from namedmesh.training.saved_variables import SavedVariable as SavedVariable
from namedmesh.training.stopping import StopRequest as StopRequest
from namedmesh.training.stopping import graceful_stop as graceful_stop
from namedmesh.training.streams import IteratorBatches as IteratorBatches
from namedmesh.training.streams import NumberedBatches as NumberedBatches
from namedmesh.training.streams import Stream as Stream
from namedmesh.training.streams import prefetch as prefetch
from namedmesh.training.throughput import StepProfiler as StepProfiler
from namedmesh.training.throughput import StepTimes as StepTimes
from namedmesh.training.throughput import TraceWindow as TraceWindow
from namedmesh.training.throughput import device_peak_flops as device_peak_flops
from namedmesh.training.throughput import model_flops_utilization as model_flops_utilization
from namedmesh.training.throughput import time_steps as time_steps
from namedmesh.training.trainer import Intervals as Intervals
from namedmesh.training.trainer import Trainer as Trainer
from namedmesh.training.transfer import SentBox as SentBox
from namedmesh.training.transfer import TransferPlan as TransferPlan
from namedmesh.training.weights import load_weights as load_weights
from namedmesh.training.weights import save_weights as save_weights

__getattr__, __dir__ = explain_names(__name__, "nm.training")
