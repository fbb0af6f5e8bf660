"""What models are made of: built on the named ops alone."""
