"""Translation as a service: a queue that makes batches, an HTTP interface, and a page."""
