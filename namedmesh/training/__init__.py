"""What every trainer needs: checkpoints, weights, metrics, progress, profiling, and the loop.

Needs numpy, jax, tensorstore, rich and safetensors, and not TensorFlow; tensorboardX is optional,
and so is orbax, which reads older checkpoints.
"""

from namedmesh.training.averaging import average_results as average_results
from namedmesh.training.averaging import share_state as share_state
from namedmesh.training.checkpoints import Checkpoints as Checkpoints
from namedmesh.training.intervals import Intervals as Intervals
from namedmesh.training.metrics import MetricsLog as MetricsLog
from namedmesh.training.metrics import read_metrics as read_metrics
from namedmesh.training.printing import format_duration as format_duration
from namedmesh.training.printing import render_table as render_table
from namedmesh.training.profiling import StepProfiler as StepProfiler
from namedmesh.training.profiling import TraceWindow as TraceWindow
from namedmesh.training.progress import ProgressBar as ProgressBar
from namedmesh.training.restoring import Checkpoint as Checkpoint
from namedmesh.training.saved_variables import SavedVariable as SavedVariable
from namedmesh.training.signals import StopRequest as StopRequest
from namedmesh.training.signals import graceful_stop as graceful_stop
from namedmesh.training.streams import NumberedBatches as NumberedBatches
from namedmesh.training.streams import Stream as Stream
from namedmesh.training.streams import prefetch as prefetch
from namedmesh.training.throughput import StepTimes as StepTimes
from namedmesh.training.throughput import device_peak_flops as device_peak_flops
from namedmesh.training.throughput import model_flops_utilization as model_flops_utilization
from namedmesh.training.throughput import time_steps as time_steps
from namedmesh.training.trainer import Trainer as Trainer
from namedmesh.training.weights import load_weights as load_weights
from namedmesh.training.weights import save_weights as save_weights
