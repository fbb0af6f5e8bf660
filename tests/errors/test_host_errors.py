"""Hosts and slices that a mesh cannot have."""

import namedmesh as nm
from tests.errors.wrong import Table, message_of

wrong = Table()


@wrong("""
hosts has size 0
  mesh: Mesh(data=8)
  at LINE: nm.Mesh(data=8, hosts=0)
  fix: a size is a positive whole number
""")
def no_hosts():
    nm.Mesh(data=8, hosts=0)


@wrong("""
8 devices do not divide among 3 hosts
  mesh: Mesh(data=2, expert=4, hosts=3)
  at LINE: nm.Mesh(data=2, expert=4, hosts=3)
  fix: use one of hosts=1, 2, 4, 8
""")
def hosts_that_do_not_divide():
    nm.Mesh(data=2, expert=4, hosts=3)


@wrong("""
8 devices do not divide among 16 slices
  mesh: Mesh(data=8, slices=16)
  at LINE: nm.Mesh(data=8, slices=16)
  fix: use one of slices=1, 2, 4, 8
""")
def more_slices_than_devices():
    nm.Mesh(data=8, slices=16)


@wrong("""
4 hosts do not divide among 3 slices
  mesh: Mesh(data=12, hosts=4, slices=3)
  at LINE: nm.Mesh(data=12, hosts=4, slices=3)
  fix: give the hosts of all slices together, as many for each
""")
def hosts_that_do_not_divide_among_slices():
    nm.Mesh(data=12, hosts=4, slices=3)


@wrong("""
2 hosts cut axis expert of 2 into unequal shards
  mesh: Mesh(data=3, expert=2, hosts=2)
  at LINE: nm.Mesh(data=3, expert=2, hosts=2)
  fix: let hosts divide the first axes, e.g. put an axis of 2 first
""")
def hosts_across_a_later_axis():
    nm.Mesh(data=3, expert=2, hosts=2)


@wrong("""
device_assignment puts devices of several hosts into places 0 to 1, which are those of one host
  mesh: Mesh(data=4, hosts=2)
  at LINE: nm.Mesh(data=4, hosts=2, device_assignment=[0, 2, 1, 3])
  fix: keep the 2 devices of a host together, or leave out hosts=
""")
def assignment_that_mixes_hosts():
    nm.Mesh(data=4, hosts=2, device_assignment=[0, 2, 1, 3])


@wrong("""
device_assignment puts devices of several slices into places 0 to 3, which are those of one slice
  mesh: Mesh(data=8, hosts=4, slices=2)
  at LINE: nm.Mesh(data=8, hosts=4, slices=2, device_assignment=[0, 1, 4, 5, 2, 3, 6, 7])
  fix: keep the 4 devices of a slice together, or leave out slices=
""")
def assignment_that_mixes_slices():
    nm.Mesh(data=8, hosts=4, slices=2, device_assignment=[0, 1, 4, 5, 2, 3, 6, 7])


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
