"""Programs with several mistakes of one kind: the message names every one of them."""

import namedmesh as nm
from tests.errors.wrong import SPECS, B, H, M, S, Table, message_of

MESH = nm.Mesh(data=2, expert=4)
wrong = Table()


@wrong("""
einsum: result dimensions bach and modl are in none of the operands
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  the result: [bach=4, modl=8, hidden=16]
  at LINE: nm.einsum([x, w], nm.dims("bach=4 modl=8 hidden=16"))
  fix: did you mean 'batch'? did you mean 'model'? (to add a dimension use nm.broadcast)
""")
def einsum_to_unknown_dimensions(x, w):
    nm.einsum([x, w], nm.dims("bach=4 modl=8 hidden=16"))


@wrong("""
concat: sum and k differ from x in more than dimension seq
  x: float32[batch=4, seq=6, model=8]
  sum: float32[seq=6, model=8]
  k: float32[batch=4, seq=6]
  at LINE: nm.concat([x, nm.sum(x, over=B), nm.cast(k, "float32")], S)
  fix: make their other dimensions and dtypes equal
""")
def concat_of_several_that_differ(x, w, k):
    nm.concat([x, nm.sum(x, over=B), nm.cast(k, "float32")], S)


@wrong("""
concat: w has no dimension hiden; x has no dimension hiden; k has no dimension hiden
  w: float32[model=8, hidden=16]
  x: float32[batch=4, seq=6, model=8]
  k: int32[batch=4, seq=6]
  at LINE: nm.concat([w, x, k], "hiden")
  fix: did you mean 'hidden'?
""")
def concat_along_a_dimension_that_several_lack(x, w, k):
    nm.concat([w, x, k], "hiden")


@wrong("""
sum: dimensions model=8 and seq=6 are named twice in over=
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=[S, M, M, S])
  fix: name each once
""")
def sum_over_dimensions_named_twice(x):
    nm.sum(x, over=[S, M, M, S])


@wrong("""
sum: mixes elements of dimensions batch and seq, over which the region is split
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.manual(lambda x: nm.sum(x, over=[B, S]), x, over=[B, S])
  fix: leave batch and seq out of over=, do this outside the region, or use nm.collective
""")
def manual_region_that_mixes_two_dimensions(x):
    nm.manual(lambda x: nm.sum(x, over=[B, S]), x, over=[B, S])


@wrong("""
manual: the result zeros lacks dimensions batch and seq, over which the region is split
  zeros: float32[model=8]
  at LINE: nm.manual(lambda x: nm.zeros([M]), x, over=[B, S])
  fix: compute it outside the region, or nm.broadcast it to include batch and seq
""")
def manual_result_that_lacks_two_dimensions(x):
    nm.manual(lambda x: nm.zeros([M]), x, over=[B, S])


@wrong("""
scan: the body's carry: columns is float32[model=8], expected float32[batch=4]; rows is \
float32[batch=4], expected float32[model=8]
  at LINE: nm.scan(lambda carry, row: (carry[::-1], None), (rows, columns), x, over=S)
  fix: make them like rows and columns, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def loop_whose_carries_all_change(x):
    rows = nm.zeros([B])
    columns = nm.zeros([M])
    nm.scan(lambda carry, row: (carry[::-1], None), (rows, columns), x, over=S)


@wrong("""
scan: the carries x and k have the loop's own dimension seq
  x: float32[batch=4, seq=6, model=8]
  k: int32[batch=4, seq=6]
  at LINE: nm.scan(lambda c, row: (c, None), (x, k), x, over=S)
  fix: rename it, e.g. nm.rename(x, seq, nm.Dimension('seq_2', 6))
""")
def carries_that_have_the_dimension_of_the_loop(x, k):
    nm.scan(lambda c, row: (c, None), (x, k), x, over=S)


@wrong("""
custom_vjp: the backward function's cotangent of x is float32[batch=4, seq=6, hidden=16]; its \
cotangent of w is float32[batch=4, seq=6, hidden=16]
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  declared at LINE: swap = nm.custom_vjp(lambda x, w: (nm.einsum([x, w], [B, S, H]), None), \
lambda _, dy: (dy, dy))
  at LINE: nm.grad(nm.sum(swap(x, w)), [x, w])
  fix: give it the shape and dtype of its argument
""")
def cotangents_that_do_not_fit(x, w):
    swap = nm.custom_vjp(lambda x, w: (nm.einsum([x, w], [B, S, H]), None), lambda _, dy: (dy, dy))
    nm.grad(nm.sum(swap(x, w)), [x, w])


@wrong("""
call_tf: no tensor has the batch dimensions batch and seq
  w: float32[model=8, hidden=16]
  result: [model=8, hidden=16]
  at LINE: nm.call_tf(lambda w: w, w, result=SPECS["w"], batch=[B, S])
  fix: leave batch and seq out of batch=
""")
def batch_dimensions_that_no_tensor_has(w):
    nm.call_tf(lambda w: w, w, result=SPECS["w"], batch=[B, S])


@wrong("""
layout batch:dta+expert, hidden:model: the mesh has no axes 'dta' and 'model'
  mesh: Mesh(data=2, expert=4)
  at LINE: nm.Layout("batch:dta+expert, hidden:model").check(MESH, {"batch": [4], "hidden": [16]})
  fix: did you mean 'data'? use one of: data, expert
""")
def layout_of_axes_the_mesh_lacks():
    nm.Layout("batch:dta+expert, hidden:model").check(MESH, {"batch": [4], "hidden": [16]})


@wrong("""
the layout maps dimensions 'bach' and 'hiden', which no tensor of the program has
  layout: bach:data, hiden:expert
  dimensions: batch=4, hidden=16
  at LINE: nm.Layout("bach:data, hiden:expert").check(MESH, {"batch": [4], "hidden": [16]})
  fix: did you mean 'batch'? did you mean 'hidden'? (or leave them out: layout.only(program.dims))
""")
def layout_of_dimensions_the_program_lacks():
    nm.Layout("bach:data, hiden:expert").check(MESH, {"batch": [4], "hidden": [16]})


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
