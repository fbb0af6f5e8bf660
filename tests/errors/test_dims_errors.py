"""Dimensions and meshes that are wrong in themselves."""

# pyright: reportArgumentType=false

import math

import numpy as np

import namedmesh as nm
from tests.errors.wrong import B, M, Table, message_of

wrong = Table()


@wrong("""
dimension name 'batch-size' is not an identifier
  at LINE: nm.Dimension("batch-size", 4)
  fix: use letters, digits and underscores, not starting with a digit
""")
def dimension_name_with_a_dash():
    nm.Dimension("batch-size", 4)


@wrong("""
dimension name 3 is not a string
  at LINE: nm.Dimension(3, 4)
  fix: write the name as a string
""")
def dimension_name_that_is_a_number():
    nm.Dimension(3, 4)


@wrong("""
dimension batch has size 0
  at LINE: nm.Dimension("batch", 0)
  fix: a size is a positive whole number
""")
def dimension_of_size_zero():
    nm.Dimension("batch", 0)


@wrong("""
dimension batch has size 4.0
  at LINE: nm.Dimension("batch", 4.0)
  fix: a size is a positive whole number
""")
def dimension_of_a_float_size():
    nm.Dimension("batch", 4.0)


@wrong("""
dimension batch has size True
  at LINE: nm.Dimension("batch", True)
  fix: a size is a positive whole number
""")
def dimension_of_size_true():
    nm.Dimension("batch", True)


@wrong("""
dimension batch has size -1
  at LINE: B.resized(-1)
  fix: a size is a positive whole number
""")
def dimension_resized_below_one():
    B.resized(-1)


@wrong("""
cannot read 'model' as name=size
  batch=4 model
          ^^^^^
  at LINE: nm.dims("batch=4 model")
  fix: write e.g. 'batch=8 model=16', each name once, each size a positive whole number
""")
def dims_without_a_size():
    nm.dims("batch=4 model")


@wrong("""
cannot read 'model=-8' as name=size
  batch=4 model=-8
          ^^^^^^^^
  at LINE: nm.dims("batch=4 model=-8")
  fix: write e.g. 'batch=8 model=16', each name once, each size a positive whole number
""")
def dims_of_a_negative_size():
    nm.dims("batch=4 model=-8")


@wrong("""
cannot read '2model=8' as name=size
  batch=4 2model=8
          ^^^^^^^^
  at LINE: nm.dims("batch=4 2model=8")
  fix: write e.g. 'batch=8 model=16', each name once, each size a positive whole number
""")
def dims_of_a_name_that_starts_with_a_digit():
    nm.dims("batch=4 2model=8")


@wrong("""
dimension batch is given twice
  batch=4 model=8 batch=2
                  ^^^^^^^
  at LINE: nm.dims("batch=4 model=8 batch=2")
  fix: write e.g. 'batch=8 model=16', each name once, each size a positive whole number
""")
def dims_twice():
    nm.dims("batch=4 model=8 batch=2")


@wrong("""
dimensions cannot be read from int 8
  at LINE: nm.dims(8)
  fix: write a string such as 'batch=8 model=16'
""")
def dims_of_no_text():
    nm.dims(8)


@wrong("""
dimension batch appears twice in one shape: [batch=4, model=8, batch=4]
  at LINE: nm.spec([B, M, B])
  fix: rename one of them, e.g. nm.rename(x, batch, nm.Dimension('batch_2', 4))
""")
def shape_with_a_dimension_twice():
    nm.spec([B, M, B])


@wrong("""
nm.spec: there is no dimension 'batch' here
  at LINE: nm.spec(["batch", "model"])
  fix: there are none to choose from, or give a size: 'batch=8'
""")
def shape_of_names():
    nm.spec(["batch", "model"])


@wrong("""
expected a list of dimensions, not the single dimension batch=4
  at LINE: nm.spec(B)
  fix: write [batch]
""")
def shape_of_one_dimension_without_a_list():
    nm.spec(B)


@wrong("""
expected a list of dimensions, not int 4
  at LINE: nm.spec(4)
  fix: make dimensions with nm.dims('batch=8 model=16') and pass a list of them
""")
def shape_of_a_number():
    nm.spec(4)


@wrong("""
nm.spec: there is no dimension 'batch' here
  at LINE: nm.spec("batch")
  fix: there are none to choose from, or give a size: 'batch=8'
""")
def shape_of_one_string():
    nm.spec("batch")


@wrong("""
a mesh needs at least one axis
  at LINE: nm.Mesh()
  fix: write e.g. nm.Mesh(data=8)
""")
def mesh_without_axes():
    nm.Mesh()


@wrong("""
mesh axis data has size 0
  mesh: Mesh(data=0, expert=4)
  at LINE: nm.Mesh(data=0, expert=4)
  fix: a size is a positive whole number
""")
def mesh_of_size_zero():
    nm.Mesh(data=0, expert=4)


@wrong("""
mesh axis expert has size -4
  mesh: Mesh(data=2, expert=-4)
  at LINE: nm.Mesh(data=2, expert=-4)
  fix: a size is a positive whole number
""")
def mesh_of_negative_size():
    nm.Mesh(data=2, expert=-4)


@wrong("""
mesh axis data has size 2.0
  mesh: Mesh(data=2.0)
  at LINE: nm.Mesh(data=2.0)
  fix: a size is a positive whole number
""")
def mesh_of_float_size():
    nm.Mesh(data=2.0)


@wrong("""
mesh axis data has size nan
  mesh: Mesh(data=nan)
  at LINE: nm.Mesh(data=math.nan)
  fix: a size is a positive whole number
""")
def mesh_of_nan():
    nm.Mesh(data=math.nan)


@wrong("""
mesh axis name 'data-parallel' is not an identifier
  mesh: Mesh(data-parallel=2)
  at LINE: nm.Mesh(**{"data-parallel": 2})
  fix: use letters, digits and underscores, not starting with a digit
""")
def mesh_axis_that_is_no_identifier():
    nm.Mesh(**{"data-parallel": 2})


@wrong("""
device_assignment does not place 4 devices once each: [0, 1, 1, 3]
  mesh: Mesh(data=2, expert=2)
  at LINE: nm.Mesh(data=2, expert=2, device_assignment=[0, 1, 1, 3])
  fix: give a permutation of 0 to 3
""")
def mesh_with_a_device_twice():
    nm.Mesh(data=2, expert=2, device_assignment=[0, 1, 1, 3])


@wrong("""
device_assignment does not place 4 devices once each: [0, 1]
  mesh: Mesh(data=4)
  at LINE: nm.Mesh(data=4, device_assignment=[0, 1])
  fix: give a permutation of 0 to 3
""")
def mesh_with_too_few_devices_assigned():
    nm.Mesh(data=4, device_assignment=[0, 1])


@wrong("""
device_assignment does not place 2 devices once each: ['cpu:0', 1]
  mesh: Mesh(data=2)
  at LINE: nm.Mesh(data=2, device_assignment=["cpu:0", 1])
  fix: give a permutation of 0 to 1
""")
def mesh_with_devices_that_are_no_numbers():
    nm.Mesh(data=2, device_assignment=["cpu:0", 1])


@wrong("""
device_assignment does not place 2 devices once each: 2
  mesh: Mesh(data=2)
  at LINE: nm.Mesh(data=2, device_assignment=2)
  fix: give a permutation of 0 to 1
""")
def mesh_with_an_assignment_that_is_no_list():
    nm.Mesh(data=2, device_assignment=2)


@wrong("""
cannot read 'expert' as name=size
  data=2 expert
         ^^^^^^
  at LINE: nm.Mesh.parse("data=2 expert")
  fix: write e.g. 'data=2 expert=4', each name once, each size a positive whole number
""")
def mesh_text_without_a_size():
    nm.Mesh.parse("data=2 expert")


@wrong("""
cannot read 'data=²' as name=size
  data=²
  ^^^^^^
  at LINE: nm.Mesh.parse("data=²")
  fix: write e.g. 'data=2 expert=4', each name once, each size a positive whole number
""")
def mesh_text_with_a_superscript():
    nm.Mesh.parse("data=²")


@wrong("""
mesh axis data is given twice
  data=2, expert=4, data=2
                    ^^^^^^
  at LINE: nm.Mesh.parse("data=2, expert=4, data=2")
  fix: write e.g. 'data=2 expert=4', each name once, each size a positive whole number
""")
def mesh_text_with_an_axis_twice():
    nm.Mesh.parse("data=2, expert=4, data=2")


@wrong("""
a mesh cannot be read from dict {'data': 2}
  at LINE: nm.Mesh.parse({"data": 2})
  fix: write a string such as 'data=2 expert=4'
""")
def mesh_text_that_is_no_text():
    nm.Mesh.parse({"data": 2})


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message


def test_sizes_from_numpy_are_sizes():
    """What looks like a mistake and is none."""
    assert nm.Dimension("batch", np.int64(4)) == B
    assert nm.Mesh(data=np.int32(2)) == nm.Mesh.parse("data:2")
