"""A table of ops, and of everything that was tried with each, by running it.

    python -m benchmarks.coverage --json OUT

For every op, random layouts on meshes of one to three axes (8 virtual CPU devices) are shared out
between six columns: batch dimensions split, dimensions of the op's own split, sizes that do not
divide, the derivative, the second derivative, and bfloat16 with its derivative. Every run is
audited strictly and compared with jax in float64. A cell is "ok", or {"reason": ...} where there
is nothing to run, or {"failed": ...}. The result has `ops` (their names), `cells` (op -> column ->
cell) and `filled` (the share of cells that are ok or have a reason: 1.0 is all).

To add an op, add an entry to the file of its kind (`elementwise`, `reductions`, `structure`,
`indexing`, `random_numbers`, `functions`, `by_hand`, `attention`, `layers`):

    "cumsum": Entry(
        lambda x: nm.cumsum(x, R),       # in names
        lambda x: jnp.cumsum(x, 1),      # the same in jax
        [kit.real(B, R, C)],             # its operands; the kit makes dimensions, too
        own=[R],                         # what it works along; other dimensions are batch
    ),

A key is the public name, after a space perhaps what is special: "sum (where)". An op that makes
parameters gets them as a last argument of its reference, by name. `reasons={SECOND: "..."}` says
why a column stays empty; of derivatives it is checked that they are refused, or zero. A public name
that is not an op belongs into `names.NOT_OPS`, with the reason; `tests/benchmarks/test_coverage.py`
fails for names that are in neither.
"""
