"""Layouts that are wrong in themselves, before any program sees them."""

# pyright: reportArgumentType=false

import math

import namedmesh as nm
from tests.errors.wrong import B, Table, message_of

wrong = Table()


@wrong("""
cannot read 'hidden model' as dimension:axis
  batch:data, hidden model
              ^^^^^^^^^^^^
  at LINE: nm.Layout("batch:data, hidden model")
  fix: write a layout as 'group:data+expert, hidden:model'
""")
def layout_without_a_colon():
    nm.Layout("batch:data, hidden model")


@wrong("""
cannot read 'hidden:model:expert' as dimension:axis
  hidden:model:expert
  ^^^^^^^^^^^^^^^^^^^
  at LINE: nm.Layout("batch:data\\nhidden:model:expert")
  fix: write a layout as 'group:data+expert, hidden:model'
""")
def layout_on_several_lines():
    nm.Layout("batch:data\nhidden:model:expert")


@wrong("""
cannot read 'batch:data+' as dimension:axis
  batch:data+
  ^^^^^^^^^^^
  at LINE: nm.Layout("batch:data+")
  fix: write a layout as 'group:data+expert, hidden:model'
""")
def layout_with_a_stray_plus():
    nm.Layout("batch:data+")


@wrong("""
the layout maps dimension batch twice: to data and to expert
  layout: batch:data, batch:expert
  at LINE: nm.Layout("batch:data, batch:expert")
  fix: write it once; several axes are joined with a plus, e.g. batch:data+expert
""")
def layout_that_maps_a_dimension_twice():
    nm.Layout("batch:data, batch:expert")


@wrong("""
the layout puts dimension batch twice on one axis: data+data
  layout: batch:data+data
  at LINE: nm.Layout("batch:data+data")
  fix: name each axis once, e.g. batch:data
""")
def layout_that_uses_an_axis_twice():
    nm.Layout("batch:data+data")


@wrong("""
dimension name 'batch-size' is not an identifier
  layout: batch-size:data
  at LINE: nm.Layout("batch-size:data")
  fix: use letters, digits and underscores, not starting with a digit
""")
def layout_of_a_name_that_is_no_identifier():
    nm.Layout("batch-size:data")


@wrong("""
mesh axis name 'data/2' is not an identifier
  layout: batch:data/2
  at LINE: nm.Layout("batch:data/2")
  fix: use letters, digits and underscores, not starting with a digit
""")
def layout_of_an_axis_that_is_no_identifier():
    nm.Layout("batch:data/2")


@wrong("""
a layout cannot be made from list ['batch:data']
  at LINE: nm.Layout(["batch:data"])
  fix: give a string such as 'batch:data, hidden:model', a dict, or Layout.from_yaml(path)
""")
def layout_that_is_a_list():
    nm.Layout(["batch:data"])


@wrong("""
mesh axis name 2 is not a string
  layout: {'batch': 2}
  at LINE: nm.Layout({"batch": 2})
  fix: write the name as a string
""")
def layout_to_a_number():
    nm.Layout({"batch": 2})


@wrong("""
mesh axis name nan is not a string
  layout: {'batch': nan}
  at LINE: nm.Layout({"batch": math.nan})
  fix: write the name as a string
""")
def layout_to_nan():
    nm.Layout({"batch": math.nan})


@wrong("""
mesh axis name inf is not a string
  layout: {'batch': ['data', inf]}
  at LINE: nm.Layout({"batch": ["data", math.inf]})
  fix: write the name as a string
""")
def layout_to_infinity_in_a_list():
    nm.Layout({"batch": ["data", math.inf]})


@wrong("""
dimension name 0 is not a string
  at LINE: nm.Layout({0: "data"})
  fix: write the name as a string
""")
def layout_of_a_key_that_is_no_string():
    nm.Layout({0: "data"})


@wrong("""
dimension name Dimension(name='batch', size=4) is not a string
  at LINE: nm.Layout({B: "data"})
  fix: write its name, 'batch'
""")
def layout_of_a_dimension_as_key():
    nm.Layout({B: "data"})


@wrong("""
the layout is not YAML: expected ',' or ']', but got '<stream end>' at line 1, column 13
  at LINE: nm.Layout.from_yaml("batch: [data")
  fix: write lines such as 'hidden: model'
""")
def yaml_that_does_not_parse():
    nm.Layout.from_yaml("batch: [data")


@wrong("""
the layout is not a YAML mapping: ['batch', 'data']
  at LINE: nm.Layout.from_yaml("- batch\\n- data")
  fix: write lines such as 'hidden: model'
""")
def yaml_that_is_a_list():
    nm.Layout.from_yaml("- batch\n- data")


@wrong("""
mesh axis name 2 is not a string
  layout: {'batch': 2}
  at LINE: nm.Layout.from_yaml("batch: 2")
  fix: write the name as a string
""")
def yaml_with_a_number():
    nm.Layout.from_yaml("batch: 2")


@wrong("""
mesh axis name nan is not a string
  layout: {'batch': nan}
  at LINE: nm.Layout.from_yaml("batch: .nan")
  fix: write the name as a string
""")
def yaml_with_nan():
    nm.Layout.from_yaml("batch: .nan")


@wrong("""
the layout has the key 'on', a YAML bool
  at LINE: nm.Layout.from_yaml("on: data")
  fix: put the name in quotes
""")
def yaml_with_a_key_that_is_no_string():
    nm.Layout.from_yaml("on: data")


@wrong("""
the layout maps dimension batch twice
  at LINE: nm.Layout.from_yaml("batch: data\\nbatch: expert")
  fix: write it once; several axes are a list, e.g. 'batch: [data, model]'
""")
def yaml_that_maps_a_dimension_twice():
    nm.Layout.from_yaml("batch: data\nbatch: expert")


@wrong("""
cannot read layout file 'nowhere/layout.yaml': No such file or directory
  at LINE: nm.Layout.from_yaml("nowhere/layout.yaml")
  fix: check the path
""")
def yaml_file_that_is_not_there():
    nm.Layout.from_yaml("nowhere/layout.yaml")


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message


def test_a_yaml_file_that_is_wrong_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layout.yaml").write_bytes(b"\xff\xfe\x00batch")
    (tmp_path / "folder.yaml").mkdir()
    for name, reason in {"layout": "it is not UTF-8 text", "folder": "Is a directory"}.items():
        message = message_of(
            lambda path=f"{name}.yaml": nm.Layout.from_yaml(path), path=f"{name}.yaml"
        )
        assert message.startswith(f"cannot read layout file '{name}.yaml': {reason}\n")


def test_axes_may_come_from_any_iterable():
    """What looks like a mistake and is none."""
    assert nm.Layout({"batch": (axis for axis in ["data"])}) == nm.Layout("batch:data")
