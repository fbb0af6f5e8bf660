"""`namedmesh calibrate`: what the devices at hand reach, measured, as a file for `nm.cost`."""
