"""Messages of a compiler that runs out of memory."""

BRIEF = """RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, \
the total memory required for HLO temporaries \
(22.30G) exceeds available HBM (15.48G). HLO module: jit__lambda.
See https://openxla.org/xla/errors/error_1000 for more details."""
FULL = """RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile permanent error. \
Ran out of memory in memory space hbm. \
Used 20.00G of 15.48G hbm. Exceeded hbm capacity by 4.52G.

Total hbm usage >= 20.52G:
    reserved        530.00M
    program          16.00G
    arguments         4.00G

  Largest program allocations in hbm:

  1. Size: 8.00G
     Operator: op_name="jit(<lambda>)/namedmesh/nm.einsum.5/XlaDot" source_file="a.py" source_line=3
     Shape: f32[16384,131072]{1,0:T(8,128)}
     Unpadded size: 8.00G
     XLA label: fusion.1 = fusion(...)
     Allocation type: HLO temp
     ==========================

  2. Size: 512.5M
     Shape: f32[8,8]{1,0:T(8,128)}
     Unpadded size: 512.5M
     XLA label: param.2 = parameter(2)
     Allocation type: HLO argument
     ==========================
"""
