"""Which op of the plan a kernel of a profile is of, by lines of compiled HLO."""

import pytest

from benchmarks.gpu.kernels import Classifier
from benchmarks.gpu.models import MODELS

TEXT = """\
HloModule step

%fused (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %one = f32[8]{0} exponential(f32[8]{0} %x), metadata={op_name="jit(f)/nm.scan.2/nm.exp.7/Exp"}
  %two = f32[8]{0} negate(f32[8]{0} %one), metadata={op_name="jit(f)/nm.negative.9/Neg"}
  ROOT %three = f32[8]{0} negate(f32[8]{0} %two), metadata={op_name="jit(f)/nm.negative.9/Neg"}
}

%bare (y: f32[8]) -> f32[8] {
  %y = f32[8]{0} parameter(0)
  ROOT %copied = f32[8]{0} copy(f32[8]{0} %y)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %named = f32[8]{0} fusion(f32[8]{0} %p), kind=kLoop, calls=%fused, metadata={op_name="nm.cast.3"}
  %loop_fusion.1 = f32[8]{0} fusion(f32[8]{0} %named), kind=kLoop, calls=%fused
  ROOT %last = f32[8]{0} fusion(f32[8]{0} %loop_fusion.1), kind=kLoop, calls=%bare
}
"""


@pytest.mark.parametrize(
    ("kernel", "instruction", "op"),
    [
        ("loop_fusion_1", "named", "cast.3"),  # its own name comes first
        ("loop_fusion_1", "loop_fusion.1", "negative.9"),  # two of three are of it
        ("loop_fusion_1", "", "negative.9"),  # a kernel has its instruction's name, without dots
        ("x", "one", "exp.7"),  # the innermost op of a loop
        ("x", "last", ""),
        ("memcpy", "", ""),
    ],
)
def test_the_op_of_a_kernel(kernel, instruction, op):
    assert Classifier(TEXT, MODELS["tiny"]).find_op(kernel, instruction) == op
