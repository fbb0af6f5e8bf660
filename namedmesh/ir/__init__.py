"""Programs: tensors, ops, and the passes over them."""
