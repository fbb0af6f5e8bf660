"""A decoder-only language model of bytes, dense or with a mixture of experts in every layer."""
