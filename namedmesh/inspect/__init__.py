"""nm.inspect: any compiled JAX step, as a plan is seen: collectives by line, tensors, memory."""
