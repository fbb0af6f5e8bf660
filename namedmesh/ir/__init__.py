"""What a program is: tensors, ops, programs, and the passes over them."""
